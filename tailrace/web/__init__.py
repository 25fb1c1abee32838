"""The ASGI parts that gateway and push share.

In: ASGI requests and handshakes. Out: answers, errors and event streams in the shape of the API. It
holds the middleware, callers' identity, error mapping, the routes of queries, event
streams, watch sockets, write deadlines and draining, and how a service runs as a process. It must
not write to the log, and knows no service.
"""
