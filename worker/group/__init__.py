"""Room group."""
