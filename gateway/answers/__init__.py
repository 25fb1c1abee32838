"""Room answers."""
