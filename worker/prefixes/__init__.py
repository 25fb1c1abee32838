"""Prefixes: which beginnings of conversations this worker's engine holds in its cache.

Gateways place a request at the worker that holds its beginning. Gateways name beginnings by
digests, engines by blocks of ids; this room translates and publishes.

    cached_blocks     what the engine's cache holds, folded from the events it publishes; pure
    held_prefixes     the digests of beginnings whose blocks are held; pure
    prefix_publisher  writes them to Redis, best effort

In: cache events and served prompts. Out: members of a sorted set in Redis. A wrong entry costs a
prefill, never an answer.
"""
