"""The revoked credentials, as this instance has read them from the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tailrace import log, telemetry
from tailrace.auth.principal import Principal
from tailrace.auth.revocation_list import RevocationList
from tailrace.delivery.whole_topic import WholeTopic
from tailrace.log import interfaces
from tailrace.protocol import records, topics

FORGET_S: Final = 60.0


class Revocations:
    """Folds `llm.revocations`. The revocations read so far hold while the broker is away.

    Attributes:
        known: the revocations.
        on_revoked: called after each batch of records that refuses more than before.
        _forget_at: when expired revocations are dropped next (seconds, by the clock).
    """

    def __init__(
        self,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives seconds since the epoch."""
        self._reader = reader
        self._clock = clock
        self._topic = WholeTopic(topics.REVOCATIONS, reader, offsets, self._apply)
        self.known = RevocationList()
        self.on_revoked: Callable[[], None] = lambda: None
        self._forget_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether everything is known that had been revoked at the start of `run`."""
        return self._topic.ready

    def refuses(self, principal: Principal) -> bool:
        """Whether the principal's credential was revoked."""
        return self.known.refuses(principal)

    async def caught_up(self) -> None:
        """Wait until everything is known that the log holds now. Raises log.LogUnavailable. Too
        slow for each request: `refuses` answers from what was read."""
        await self._topic.caught_up()

    async def run(self) -> None:
        """Read until cancelled; closes the reader at the end."""
        try:
            await self._topic.run()
        finally:
            await self._reader.stop()

    async def _apply(self, batch: list[log.Record]) -> None:
        now, more = self._clock(), False
        for record in batch:
            revocation = records.revocation_of(record.key, record.value)
            if revocation is not None:
                more |= self.known.apply(revocation, now)
            elif record.value is not None:  # tombstones have none
                telemetry.IGNORED_RECORDS.labels(reason="garbage_revocation").inc()
        if more:
            self.on_revoked()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_S
            self.known.forget(now)
