"""The heartbeat: how this worker is, for gateways and for the other workers of its pool.

    heartbeat   written to Redis every second; a worker without one is not placed to
    status      where a worker stands in its life: starting, ready, draining, failed

In: numbers of `queue`, `engines` and `serving`. Out: one key in Redis and `/ready`. It is best
effort: nothing that is durable rests on it, and Redis may be away.
"""
