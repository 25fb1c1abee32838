"""Room trials."""
