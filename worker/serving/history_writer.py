"""Writes `llm.history`: the archive record of a stored response (log rule §18)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from tailrace import log, telemetry
from tailrace.log import files as file_reader
from tailrace.log import interfaces
from tailrace.protocol import files, history, images, records, topics
from tailrace.retry import retry_until
from worker.log import appends
from worker.log.appends import append_surely
from worker.log.tail import Tail
from worker.log.tail_state import Entry

PARTITIONS: Final = topics.partitions_of(topics.HISTORY)
# Encoding a larger one on the event loop would delay the others.
LARGE_BYTES: Final = 1 << 20
# For how long, and how many, written files are remembered.
REMEMBER_S: Final = 3_600.0
MAX_REMEMBERED: Final = 10_000


class HistoryWriter:
    """Writes the records of one worker.

    Attributes:
        _recent_files: files that this worker wrote, by cache scope and digest, with the time
            (monotonic seconds); oldest first.
        _copying: held while a file is copied: one at a time, and each once.
    """

    def __init__(
        self,
        writer: interfaces.RecordWriter,
        tail: Tail,
        ranges: interfaces.RangeReader,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._writer = writer
        self._tail = tail
        self._ranges = ranges
        self._monotonic = monotonic
        self._recent_files: dict[tuple[str, str], float] = {}
        self._copying = asyncio.Lock()

    async def write(self, request: records.Request, partition: int, entry: Entry) -> None:
        """Write the record of a response that is DONE. The caller holds the entry."""
        ended, first = entry.fold.ended, entry.fold.first
        assert ended is not None
        if not history.has_history(request, ended):
            return
        if first is not None and first.owner != request.owner:
            return  # a forged claim; no reader shows it
        try:
            draft = await retry_until(
                lambda: self._tail.draft(partition, request.rid, request.owner),
                on=log.LogUnavailable,
                pause_s=appends.RETRY_S,
            )
        except log.HistoryLost:
            telemetry.log(
                telemetry.Action.RECORD_UNREADABLE, response=request.rid, reason="history lost"
            )
            return
        await self._files(request)
        place = history.partition(request.rid, PARTITIONS)
        for key, value in await self._parts(draft, request):
            await append_surely(self._writer, topics.HISTORY, place, key, value)
        entry.draft = None

    async def _parts(
        self, draft: history.Draft, request: records.Request
    ) -> list[tuple[str, bytes]]:
        if draft.size < LARGE_BYTES:
            return history.parts(draft.to_history(request))
        return await asyncio.to_thread(lambda: history.parts(draft.to_history(request)))

    async def _files(self, request: records.Request) -> None:
        """Copy the files that the request names, because `llm.files` expires."""
        scope = request.owner.cache_scope
        for part in images.parts(request.messages):
            if "file" not in part:
                continue
            async with self._copying:
                if self._remembers(scope, part["sha256"]):
                    continue
                try:
                    await self._copy(request.owner, part["sha256"], files.parse_place(part["file"]))
                except (files.NoPlace, log.HistoryLost):
                    telemetry.log(
                        telemetry.Action.RECORD_UNREADABLE, response=request.rid, reason="file lost"
                    )

    async def _copy(self, owner: records.Owner, sha256: str, where: files.Place) -> None:
        data = await retry_until(
            lambda: file_reader.read(self._ranges, sha256, where),
            on=log.LogUnavailable,
            pause_s=appends.RETRY_S,
        )
        place = files.partition(sha256, PARTITIONS)
        for number, chunk in enumerate(files.chunks(data)):
            key = history.file_key(owner.cache_scope, sha256, number)
            await append_surely(self._writer, topics.HISTORY, place, key, chunk)
        if len(self._recent_files) >= MAX_REMEMBERED:
            del self._recent_files[next(iter(self._recent_files))]
        self._recent_files[owner.cache_scope, sha256] = self._monotonic()

    def _remembers(self, scope: str, sha256: str) -> bool:
        written_at = self._recent_files.pop((scope, sha256), None)
        if written_at is None or written_at < self._monotonic() - REMEMBER_S:
            return False
        self._recent_files[scope, sha256] = written_at
        return True
