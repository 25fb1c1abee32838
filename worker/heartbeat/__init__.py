"""The heartbeat: this worker's state, for gateways and for the other workers of its pool.

    heartbeat   written to Redis every second; a worker without one gets no requests
    status      a worker's state of life: loading, ready, draining, failed

In: numbers of `queue`, `engines` and `serving`. Out: one key in Redis and `/ready`. It is best
effort: nothing durable depends on it, and Redis may be away.
"""
