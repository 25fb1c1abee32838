"""From the log to one client: live tail, look-up, hub, outbox.

In: records of `llm.tokens`, `llm.requests.*` and `llm.deletions`. Out: the events of one
response after a position, to any number of subscribers. Nothing here awaits a socket. Gateway and
push share this room; `delivery` composes it.
"""
