"""Connections of clients that are not authenticated: how many, how large a head, how slow."""
