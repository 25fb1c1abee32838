"""Redis: sessions, tickets, limits, idempotency keys, prefix metadata, heartbeats, revocations.

Everything here may be lost at any moment; the log has what matters. A call answers within its
timeout or raises `SessionsUnavailable`.
"""
