"""Writes large files of a request to the log before the request that names them.

The log keeps them for two days. The archive keeps files of stored requests longer; they are read
there, and written again if a new request names them.

A chunk that no request names is harmless, so a failure leaves nothing to undo.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tailrace import log
from tailrace.delivery import archived
from tailrace.log import files as log_files
from tailrace.log import interfaces
from tailrace.protocol import errors, files, images, records, topics

# Number of files whose place is cached, so that a client that resends its conversation does not
# cause its images to be written each time. About 400 bytes each.
MAX_PLACES: Final = 10_000
_PARTITIONS: Final = topics.partitions_of(topics.FILES)


class Files:
    """Writes and reads the files of requests.

    Attributes:
        _places: by scope and digest, the last used one last. The scope is part of the key, because
            response times would otherwise reveal what others have sent.
        _one: one file is written at a time, so that request records do not wait for several.
    """

    def __init__(
        self,
        writer: interfaces.RecordWriter,
        ranges: interfaces.RangeReader,
        offsets: interfaces.OffsetQueries,
        archive: archived.ArchiveQueries,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer = writer
        self._ranges = ranges
        self._offsets = offsets
        self._archive = archive
        self._clock = clock
        self._places: collections.OrderedDict[tuple[str, str], files.Place] = (
            collections.OrderedDict()
        )
        self._one = asyncio.Lock()

    async def apart(self, request: records.Request) -> records.Request:
        """The request with its large files replaced by their places. A file that was written too
        long ago is written again.

        Raises:
            errors.ApiError: 400, a file of an earlier turn is lost; 503, only the archive may have
                it, and it does not answer.
            log.LogUnavailable: no named chunk was written.
        """
        places: dict[str, files.Place] = {}
        scope = request.owner.cache_scope
        for part in images.parts(request.messages):
            if part["sha256"] in places:
                continue
            if "file" in part:
                places[part["sha256"]] = await self._fresh(part, scope)
            elif len(part["data"]) // 4 * 3 > files.APART_BYTES:
                places[part["sha256"]] = await self._ensure_written(part, scope)
        if not places:
            return request

        def change(part: dict[str, Any]) -> dict[str, Any]:
            place = places.get(part["sha256"])
            if place is None:
                return part
            remaining = {
                name: value for name, value in part.items() if name not in ("data", "file")
            }
            return {**remaining, "file": place.member()}

        messages = images.map_images(request.messages, change)
        return msgspec.structs.replace(request, messages=messages)

    async def keep(self, scope: str, data: bytes) -> tuple[str, files.Place]:
        """Write a file to the log unless it is there. Returns its digest and its place.

        Raises:
            log.LogUnavailable, log.AppendFailed: nothing was written that matters.
        """
        sha256 = await asyncio.to_thread(files.digest, data)
        async with self._one:
            place = await self._reusable_place(scope, sha256)
            return sha256, place or await self._write(scope, sha256, data)

    async def whole(
        self, owner: records.Owner, messages: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Messages of an owner with their files.

        Raises:
            errors.ApiError: 503, like `apart`.
            log.HistoryLost, log.LogUnavailable
        """
        scope = owner.cache_scope
        return await log_files.with_files(
            lambda sha256, place: self._read(scope, sha256, place), messages
        )

    async def _fresh(self, part: dict[str, Any], scope: str) -> files.Place:
        place = files.parse_place(part["file"])
        if await self._reusable(place):
            return place
        sha256 = part["sha256"]
        async with self._one:
            if (known_place := await self._reusable_place(scope, sha256)) is not None:
                return known_place
            try:
                data = await self._read(scope, sha256, place)
            except log.HistoryLost as error:
                raise errors.invalid_value(
                    "previous_response_id", "An image of this conversation is no longer kept."
                ) from error
            return await self._write(scope, sha256, data)

    async def _ensure_written(self, part: dict[str, Any], scope: str) -> files.Place:
        async with self._one:
            if (place := await self._reusable_place(scope, part["sha256"])) is not None:
                return place
            data = await asyncio.to_thread(files.decode_base64, part["data"])
            return await self._write(scope, part["sha256"], data)

    async def _read(self, scope: str, sha256: str, place: files.Place) -> bytes:
        """A file from the log, or from the archive. Raises like `whole`."""
        try:
            return await log_files.read(self._ranges, sha256, place)
        except log.HistoryLost:
            data = await self._archive.file(scope, sha256, len(place.at))
            if data is None or await asyncio.to_thread(files.digest, data) != sha256:
                raise
            return data

    async def _reusable_place(self, scope: str, sha256: str) -> files.Place | None:
        place = self._places.get((scope, sha256))
        if place is None or not await self._reusable(place):
            return None
        self._places.move_to_end((scope, sha256))
        return place

    async def _reusable(self, place: files.Place) -> bool:
        """Whether a new request may name this place. An operator may have lowered the topic's
        retention, so the topic's beginning is queried."""
        if not place.reusable(self._now_ms()):
            return False
        begins = await self._offsets.beginnings(topics.FILES, [place.p])
        return begins[place.p] <= min(place.at)

    async def _write(self, scope: str, sha256: str, data: bytes) -> files.Place:
        partition = files.partition(sha256, _PARTITIONS)
        offsets, timestamps = [], []
        # One after another, so that request records do not wait for all of them.
        for number, chunk in enumerate(files.chunks(data)):
            key = files.key(sha256, number)
            position = await self._append(partition, key, chunk)
            offsets.append(position.offset)
            timestamps.append(position.timestamp or int(self._now_ms()))
        place = files.Place(partition, tuple(offsets), len(data), min(timestamps))
        self._places[scope, sha256] = place
        while len(self._places) > MAX_PLACES:
            self._places.popitem(last=False)
        return place

    async def _append(self, partition: int, key: str, chunk: bytes) -> log.Appended:
        """Append a chunk; once more if it failed or its offset is unknown."""
        try:
            position = await self._writer.append(topics.FILES, partition, key, chunk)
        except log.AppendFailed:
            position = log.Appended(-1, 0)
        if position.offset < 0:
            position = await self._writer.append(topics.FILES, partition, key, chunk)
        if position.offset < 0:
            raise log.LogUnavailable("the broker does not say where it wrote a file")
        return position

    def _now_ms(self) -> float:
        return self._clock() * 1000
