"""The responses that their owners have deleted."""

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
    """A response's partition, its lower bound, digests of the principals who deleted it, and when
    this process learnt of it (seconds of its clock). Only its owner's deletion counts, and only the
    response names its owner."""

    partition: int
    offset: int
    by: frozenset[bytes]
    known_since: float


def _digest(owner: records.Owner) -> bytes:
    return hashlib.blake2b(owner.key.encode(), digest_size=16).digest()


class Deletions:
    """Reads `llm.deletions` from its beginning on.

    A deletion is stored while the log may hold a record of its response. Afterwards the answer is
    the same as for any response that retention removed. With an archive, which may lag, it is
    stored at least as long as the topic has it. By then the archive knows it.

    Attributes:
        _by_rid: deleted responses.
        _min_age_s: for how long a deletion is stored at least.
        _forget_at: when to drop the deletions of lost responses next (seconds of `clock`).
    """

    def __init__(
        self,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        clock: Callable[[], float] = time.monotonic,
        *,
        has_archive: bool = False,
    ) -> None:
        """`has_archive`: responses may be found after the log has lost them."""
        self._topic = WholeTopic(topics.DELETIONS, reader, offsets, self._apply)
        self._offsets = offsets
        self._clock = clock
        self._by_rid: dict[str, _Deleted] = {}
        self._min_age_s = topics.DELETION_MS / 1000 if has_archive else 0.0
        self._forget_at = 0.0

    def deleted_by(self, rid: str, owner: records.Owner) -> bool:
        """Whether `owner` deleted the response."""
        deletion = self._by_rid.get(rid)
        return deletion is not None and _digest(owner) in deletion.by

    async def caught_up(self, rid: str) -> None:
        """Wait until every deletion of `rid` is known that the log holds now. Raises
        log.LogUnavailable."""
        await self._topic.caught_up([topics.partition_of(topics.DELETIONS, rid)])

    def __len__(self) -> int:
        return len(self._by_rid)

    @property
    def ready(self) -> bool:
        """Whether everything was read that the topic held at the start of `run`."""
        return self._topic.ready

    def add(self, rid: str, owner: records.Owner) -> None:
        """This instance appended the deletion. It holds here at once, and on other instances when
        they read the record."""
        try:
            address = ids.parse(rid)
        except ids.InvalidId:  # no client can request it
            return
        before = self._by_rid.get(rid)
        by = (before.by if before else frozenset()) | {_digest(owner)}
        self._by_rid[rid] = _Deleted(address.partition, address.offset, by, self._clock())

    async def run(self) -> None:
        """Read until cancelled."""
        await self._topic.run()

    async def _apply(self, batch: list[log.Record]) -> None:
        for record in batch:
            deletion = records.deletion_of(record.key, record.value)
            if deletion is not None:
                self.add(deletion.rid, deletion.by)
            elif record.value is not None:
                telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        if self.ready and self._clock() >= self._forget_at:
            await self._forget()

    async def _forget(self) -> None:
        """Drop the deletions of responses that the token log has lost. Without an answer of the log
        all are retained."""
        now = self._clock()
        self._forget_at = now + FORGET_EVERY_S
        try:
            count = await self._offsets.partitions(topics.TOKENS)
            begins = await self._offsets.beginnings(topics.TOKENS, range(count))
        except log.LogUnavailable:
            return
        self._by_rid = {
            rid: each
            for rid, each in self._by_rid.items()
            if now - each.known_since < self._min_age_s
            or (each.partition in begins and each.offset >= begins[each.partition])
        }
