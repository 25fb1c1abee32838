"""Load: whether a request is accepted, by which pool, and on which partition.

All decisions here use numbers that are a moment old: heartbeats of workers in Redis, token buckets,
counts of running responses. A wrong number costs time, never an answer, because the log decides the
outcome of a request. Most files are pure; the others refresh one set of numbers each.

    admission          whether a request is accepted at all; pure
    rate_limits        token buckets of principals in Redis, and local_buckets while Redis is down
    principal_counts   running responses of each principal at other gateways
    worker_registry    the heartbeats, as last read
     pool_workers      placement's view of them; pure
    backlog            how long a request would wait; pure
    shortening         shorter answers while a pool is busy; pure
    pool_choice        the pool of a request, by backlog and breakers
     breakers          the breakers of all pools
      breaker          the breaker of one pool; pure
    canaries           shares of model revisions
     revisions         which revision gets a request; pure
    placement          the partition of a request; pure
    hedging            responses whose first token is late, which a second worker may warm

In: a command, heartbeats, limits. Out: a pool, a partition, or an error that refuses. No file here
reads or writes the log.
"""
