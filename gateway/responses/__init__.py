"""Room responses."""
