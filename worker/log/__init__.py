"""Room log."""
