"""Room retrieval."""
