"""Room prefixes."""
