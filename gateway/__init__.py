"""Commands in: verifies, validates, limits, resolves the conversation, appends the request to the
log, and delivers what the asking connection asked for."""
