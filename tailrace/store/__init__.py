"""Redis: data that a deployment may lose at any moment. The log has everything that matters.

    redis_store   the connection: batches of commands, timeouts, `StoreUnavailable`
    sessions      conversation state of a finished response, a cache over the log
    tickets       one-time tickets for WebSocket handshakes of browsers
    idempotency   idempotency key -> response id
    limits        token buckets
    indexed       values under digests, with a maximum number for each pool
    answers       former answers that may be given again
    prefixes      which workers' engines hold which prompt prefixes
    workers       heartbeats of workers
    revocations   principals who were revoked

Each of these modules except the first is about one kind of key: its shape, commands, Lua scripts.
In: a `RedisStore`. Out: plain values. Each call answers within its timeout or raises
`StoreUnavailable`; the caller decides what holds then (tickets fail closed, caches are skipped).

Keys are hashed where they would hold a person's name or a secret, which also bounds their length.
Braces in a key are cluster hash tags. Only commands of Redis 6.2 are used. Scripts read the
server's clock, so clocks of clients do not matter. `k8s/make_secrets.py` grants each service
exactly the commands and key patterns that it uses of these modules.
"""
