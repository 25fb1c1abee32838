"""The worker: reads requests from the log, runs the engine, writes tokens to the log.

Rooms, top to bottom; each imports rooms below it only:

    app         the parts of a worker, its start and its end
    trials      fields that the engine accepts, found before the worker joins
    sharing     offers between the workers of a pool, through Redis
    group       this worker's requests; commits
    heartbeat   this worker's state
    serving     one response, from its request to DONE (log rule W1 to W7)
    engines     one file for each engine
    prefixes    contents of the engine's prefix cache
    log         folds of the token partitions
    queue       whose turn is next; mostly pure
    text        ids become frames

In: records of `llm.requests.*` and the engine's output. Out: records of `llm.tokens`, usage, audit
and dead letters, and a heartbeat in Redis. The worker answers no client, and commits a request's
offset only when the log says DONE. The rules W1 to W7 are in docs/log-rule.md.
"""
