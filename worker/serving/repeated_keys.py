"""Idempotency keys among the requests that this worker has read (pure; log rule §10).

Two gateways can append one key at the same time. The first request in the log is valid, and the
gateway of the second one withdraws it. The worker reads both in one partition, so it knows the
second one before its CANCEL is there.
"""

from __future__ import annotations

import collections
import hashlib
from typing import Final, NamedTuple

from tailrace.protocol import records

# Keys of each partition. Gateways search the same range, so they find the same requests.
RECENT: Final = 1_000


class Place(NamedTuple):
    """Where a record of a request topic lies."""

    topic: str
    partition: int
    offset: int


class _First(NamedTuple):
    rid: str
    offset: int


class RepeatedKeys:
    """The first request of each recent key, by partition of the request topics."""

    def __init__(self) -> None:
        self._first: collections.defaultdict[
            tuple[str, int], collections.OrderedDict[bytes, _First]
        ] = collections.defaultdict(collections.OrderedDict)

    def note(self, at: Place, request: records.Request) -> None:
        """A request was read. Requests of a partition arrive in order, and again from an earlier
        offset after a rebalance."""
        if request.idempotency_key is None:
            return
        firsts, key = self._first[at.topic, at.partition], _digest(request)
        first = firsts.get(key)
        if first is not None and at.offset - RECENT <= first.offset <= at.offset:
            return
        firsts[key] = _First(request.rid, at.offset)
        firsts.move_to_end(key)
        if len(firsts) > RECENT:
            firsts.popitem(last=False)

    def earlier(self, at: Place, request: records.Request) -> str:
        """The response whose request has the same key and lies before this one; empty: none."""
        if request.idempotency_key is None:
            return ""
        first = self._first[at.topic, at.partition].get(_digest(request))
        if first is None or first.offset >= at.offset or first.rid == request.rid:
            return ""
        return first.rid


def _digest(request: records.Request) -> bytes:
    text = f"{request.owner.key}|{request.idempotency_key}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
