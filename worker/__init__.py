"""The worker: takes requests from the log, runs the engine, writes tokens to the log.

Rooms, top to bottom; each imports rooms below it only:

    app         what a worker is made of, how it starts and leaves
    trials      what the engine takes, found before the worker joins
    sharing     what the workers of a pool do for each other, by way of Redis
    group       which requests are this worker's; commits
    heartbeat   how this worker is
    serving     one response, from its request to DONE (log rule W1 to W7)
    engines     one file for each engine
    prefixes    what the engine's prefix cache holds
    log         folds of the token partitions
    queue       whose turn is next; pure for the most part
    text        ids become frames

In: records of `llm.requests.*` and the engine's output. Out: records of `llm.tokens`, usage, audit
and dead letters, and a heartbeat in Redis. The worker answers no client, and commits a request's
offset only when the log says DONE. The rules W1 to W7 are in docs/log-rule.md.
"""
