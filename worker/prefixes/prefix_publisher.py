"""Publishes in Redis which beginnings of conversations this worker's engine holds, for gateways.
Best effort: while Redis is away, requests are placed without it."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable
from typing import Final

from tailrace import telemetry
from tailrace.store.prefixes import PREFIX_TTL_S, Prefixes
from tailrace.store.redis_store import StoreUnavailable
from worker.prefixes.held_prefixes import HeldPrefixes

PUBLISH_S: Final = 1.0
MAX_AT_ONCE: Final = 1_000  # digests of one write; the others follow later
# Unchanged entries are written again after this time, before they expire in Redis.
REFRESH_S: Final = PREFIX_TTL_S / 3


class PrefixPublisher:
    """Publishes changes once a second.

    Attributes:
        _published: tokens, and when they were written (monotonic seconds), by digest.
    """

    def __init__(
        self,
        store: Prefixes,
        held: HeldPrefixes,
        *,
        pool: str,
        incarnation: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._held = held
        self._pool = pool
        self._incarnation = incarnation
        self._monotonic = monotonic
        self._published: dict[str, tuple[int, float]] = {}

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                await self.publish()
            except Exception as error:  # a defect here must not end the worker
                telemetry.log(telemetry.Action.TASK_FAILED, part="prefix-publisher", exc_info=error)
            await asyncio.sleep(PUBLISH_S)

    async def publish(self) -> None:
        """Publish the changes once; no call without changes."""
        now = self._monotonic()
        table = self._held.table(now)
        telemetry.HELD_PREFIXES.set(len(table))
        if self._held.blocks is not None:
            telemetry.CACHED_BLOCKS.set(len(self._held.blocks))
        removals = ((digest, 0) for digest in self._published.keys() - table.keys())
        updates = (
            (digest, tokens)
            for digest, tokens in table.items()
            if self._needs_update(self._published.get(digest), tokens, now)
        )
        changes = dict(itertools.islice(itertools.chain(removals, updates), MAX_AT_ONCE))
        if not changes:
            return
        try:
            await self._store.publish(self._pool, self._incarnation, changes)
        except StoreUnavailable:
            # The state of Redis is unknown: it may have been emptied, or have the changes.
            self._published = dict.fromkeys((*self._published, *changes), (0, -math.inf))
            return
        for digest, tokens in changes.items():
            if tokens:
                self._published[digest] = tokens, now
            else:
                self._published.pop(digest, None)

    def _needs_update(self, entry: tuple[int, float] | None, tokens: int, now: float) -> bool:
        return entry is None or entry[0] != tokens or now - entry[1] >= REFRESH_S
