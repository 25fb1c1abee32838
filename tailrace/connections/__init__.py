"""Connections before anybody is authenticated: how many, how large a request's head, how slow."""
