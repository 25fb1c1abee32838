"""Prefixes: which beginnings of conversations this worker's engine holds in its cache.

Gateways place a request where its beginning is held. They know beginnings by digests, engines know
blocks of ids; this room translates and publishes.

    cached_blocks     what the engine's cache holds, folded from the events it publishes; pure
    held_prefixes     the digests of beginnings whose blocks are held; pure
    prefix_publisher  writes them to Redis, best effort

In: cache events and served prompts. Out: members of a sorted set in Redis. A wrong entry costs a
prefill, never an answer.
"""
