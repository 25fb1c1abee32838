"""Which responses their owners deleted."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace import log, telemetry
from tailrace.delivery.whole_topic import WholeTopic
from tailrace.log import interfaces
from tailrace.protocol import ids, records, topics

FORGET_EVERY_S: Final = 600.0


class _Deleted(NamedTuple):
    """A response's partition, the offset below which none of its records lie, digests of who
    deleted it, and when this process learnt of it (seconds of its clock). Only its owner's deletion
    counts, and who that is only the response tells."""

    partition: int
    offset: int
    by: frozenset[bytes]
    known_since: float


def _digest(owner: records.Owner) -> bytes:
    return hashlib.blake2b(owner.key.encode(), digest_size=16).digest()


class Deletions:
    """Reads `llm.deletions` from its beginning on.

    A deletion is remembered as long as the log may hold a record of its response. Afterwards the
    answer is the same as for any response that retention took. Where there is an archive, which may
    be behind, it is remembered at least as long as the topic holds it. The archive knows it then.

    Attributes:
        _deleted: deleted responses.
        _keep_s: for how long one is remembered at least.
        _forget_at: when to look again what the log no longer holds (seconds of `clock`).
    """

    def __init__(
        self,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        clock: Callable[[], float] = time.monotonic,
        *,
        outlived: bool = False,
    ) -> None:
        """`outlived`: responses may be found after the log has lost them."""
        self._topic = WholeTopic(topics.DELETIONS, reader, offsets, self._take)
        self._offsets = offsets
        self._clock = clock
        self._deleted: dict[str, _Deleted] = {}
        self._keep_s = topics.DELETION_MS / 1000 if outlived else 0.0
        self._forget_at = 0.0

    def by(self, rid: str, owner: records.Owner) -> bool:
        """Whether `owner` deleted the response."""
        found = self._deleted.get(rid)
        return found is not None and _digest(owner) in found.by

    async def caught_up(self, rid: str) -> None:
        """Wait until every deletion of `rid` is known that the log holds now. Raises
        log.LogUnavailable."""
        await self._topic.caught_up([topics.partition_of(topics.DELETIONS, rid)])

    def __len__(self) -> int:
        return len(self._deleted)

    @property
    def ready(self) -> bool:
        """Whether everything was read that the topic held at the start of `run`."""
        return self._topic.ready

    def add(self, rid: str, owner: records.Owner) -> None:
        """This instance appended the deletion. It holds here at once, and on other instances when
        they read the record."""
        try:
            address = ids.parse(rid)
        except ids.InvalidId:  # no client can ask for it
            return
        before = self._deleted.get(rid)
        by = (before.by if before else frozenset()) | {_digest(owner)}
        self._deleted[rid] = _Deleted(address.partition, address.offset, by, self._clock())

    async def run(self) -> None:
        """Read until cancelled."""
        await self._topic.run()

    async def _take(self, batch: list[log.Record]) -> None:
        for record in batch:
            decoded = records.deletion_of(record.key, record.value)
            if decoded is not None:
                self.add(decoded.rid, decoded.by)
            elif record.value is not None:
                telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        if self.ready and self._clock() >= self._forget_at:
            await self._forget()

    async def _forget(self) -> None:
        """Forget what the token log no longer holds. Without an answer all of it is kept."""
        now = self._clock()
        self._forget_at = now + FORGET_EVERY_S
        try:
            count = await self._offsets.partitions(topics.TOKENS)
            begins = await self._offsets.beginnings(topics.TOKENS, range(count))
        except log.LogUnavailable:
            return
        self._deleted = {
            rid: each
            for rid, each in self._deleted.items()
            if now - each.known_since < self._keep_s
            or (each.partition in begins and each.offset >= begins[each.partition])
        }
