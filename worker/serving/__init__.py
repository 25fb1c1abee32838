"""Room serving."""
