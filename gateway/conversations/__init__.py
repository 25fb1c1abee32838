"""Room conversations."""
