"""Room queue."""
