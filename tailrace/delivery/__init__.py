"""From the log to one client: tail, replay, fold, hub, outbox.

In: records of `llm.tokens` and `llm.requests.*`. Out: the events of one response after a position,
to any number of subscribers. Nothing here awaits a socket. Gateway and push share this room.
"""
