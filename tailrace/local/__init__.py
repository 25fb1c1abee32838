"""A whole deployment on one machine: starts its processes, supervises them, and stops them.

In here: the supervisor, the broker and the Redis that it starts, their installation, and the plan
of services, ports and settings. It starts services as processes and never imports one.
"""
