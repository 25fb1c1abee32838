"""Room heartbeat."""
