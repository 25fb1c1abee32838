"""Room sharing."""
