"""The ASGI parts that gateway and push share.

Middleware, callers' identity, error mapping, event streams, watch sockets, draining, and how a
service runs as a process. Nothing here knows how a request gets into the log.
"""
