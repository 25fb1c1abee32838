"""The push service: queries out. Clients resume and watch responses that others created.

In: GET requests, event streams and watch sockets. Out: events from the log. It writes nothing, and
keeps nothing that is not in the log.
"""
