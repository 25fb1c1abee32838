"""Prompts: how a request becomes the ids that a model reads."""
