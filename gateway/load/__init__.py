"""Room load."""
