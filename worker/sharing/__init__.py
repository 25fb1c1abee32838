"""Sharing: what the workers of a pool do for each other.

Everything goes through Redis and is best effort. The log decides who owns a response, so an offer
that two workers accept costs one of them little.

    offer_channel  offers of the pool, seen from one worker
    stealing       offers requests that wait here; an idle worker serves those of others
    handing_over   offers running responses to workers that have their model revision
    hedging        serves responses whose first token is late elsewhere

In: offers in Redis, the queue. Out: offers, and requests for `group.foreign_requests` to read.
"""
