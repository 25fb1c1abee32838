"""Room routes."""
