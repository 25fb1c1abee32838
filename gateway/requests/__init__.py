"""Room requests."""
