"""One machine: a whole deployment as processes, started, watched and taken down.

The supervisor, the broker and the Redis it starts, the installation that brings them, and the plan
that says which services run on which ports. It never imports a service.
"""
