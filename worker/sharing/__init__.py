"""Sharing: what the workers of a pool do for each other.

All of it goes by way of Redis and is best effort. The log decides who owns a response, so an offer
that two workers take costs one of them a moment.

    offering       offers of the pool, seen from one worker
    stealing       offers what waits here, and takes what others offer while this worker is idle
    handing_over   offers running responses to workers that have their model revision
    hedging        takes responses whose first token is late elsewhere

In: offers in Redis, the queue. Out: offers, and requests for `group.foreign_requests` to read.
"""
