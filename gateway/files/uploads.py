"""Files that clients upload and name in requests.

`llm.uploads` holds a record for each, and every gateway holds the whole topic: owners, files, and
the places of their chunks. The chunks are in `llm.files`, like those of files within requests.

The id of a file that was uploaded with an idempotency key is computed from owner and key. So a
retry writes the same file, at any gateway, and no key is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
import zlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from gateway.files.files import Files
from gateway.parsing import images, uploads
from tailrace import log, telemetry
from tailrace.delivery.whole_topic import WholeTopic
from tailrace.log import files as log_files
from tailrace.log import interfaces
from tailrace.protocol import errors, ids, records, topics
from tailrace.protocol import files as protocol_files

# Limits of one owner, for all files that have not expired. Deleted ones count, because their chunks
# are in the log.
MAX_FILES: Final = 2_000  # as many as a vector store holds
MAX_TOGETHER: Final = 256 << 20
FORGET_EVERY_S: Final = 600.0
_PARTITIONS: Final = topics.partitions_of(topics.UPLOADS)
_PREFIX: Final = ids.FILE_PREFIX


class Uploads:
    """The live uploads, folded from the log.

    A query first reads up to the log's end: it sees a file that another gateway has just accepted,
    and not one that it deleted.

    Attributes:
        _uploads: by owner's key and by id, in log order; deleted ones too.
        _forget_at: when to drop expired ones next (seconds of `monotonic`).
    """

    def __init__(
        self,
        incarnation: bytes,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        ranges: interfaces.RangeReader,
        writer: interfaces.RecordWriter,
        files: Files,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`incarnation`: the tag of the log."""
        self._incarnation = incarnation
        self._reader = reader
        self._ranges = ranges
        self._writer = writer
        self._files = files
        self._clock = clock
        self._monotonic = monotonic
        self._topic = WholeTopic(topics.UPLOADS, reader, offsets, self._on_batch)
        self._uploads: dict[str, dict[str, records.Upload]] = {}
        self._forget_at = 0.0

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await self._topic.run()
        finally:
            await self._reader.stop()

    async def add(
        self, owner: records.Owner, upload: uploads.UploadForm, key: str | None = None
    ) -> records.Upload:
        """Add a file. It is in the log when this returns. If `key` names an existing file, return
        that one and write nothing.

        Raises:
            errors.ApiError: 429, the owner has reached a limit; 409, the key names another file, or
                a deleted one.
            log.LogUnavailable, log.AppendFailed: no client knows the id of what was written. With a
                key it may be retried.
        """
        await self._caught_up(owner)
        random = _derive(owner, key) if key else os.urandom(ids.RANDOM_BYTES)
        name = ids.mint(ids.Address(self._incarnation, partition_of(owner), 0), random, _PREFIX)
        before = self._uploads.get(owner.key, {}).get(name)
        if before is not None and not self._expired(before):
            digest = await asyncio.to_thread(protocol_files.digest, upload.data)
            return _same(before, digest, upload)
        self._check_room(owner, len(upload.data))
        sha256, place = await self._files.keep(owner.cache_scope, upload.data)
        created_at = int(self._clock())
        record = records.Upload(
            id=name,
            owner=owner,
            sha256=sha256,
            file=place,
            filename=upload.filename,
            purpose=upload.purpose,
            media=upload.media,
            created=created_at,
            expires=created_at + upload.lives_s,
            width=upload.width,
            height=upload.height,
        )
        await self._append(record)
        if not key:
            return record
        await self._caught_up(owner)
        first = self._uploads.get(owner.key, {}).get(name, record)
        if not _alike(first, record):
            await self._append(first)  # compaction keeps the last record of a key
        return _same(first, sha256, upload)

    async def find(self, file_id: str, owner: records.Owner) -> records.Upload | None:
        """A file of the owner; None if there is none with this id. Raises log.LogUnavailable."""
        try:
            ids.parse(file_id, _PARTITIONS, ids.FILE_PREFIX)
        except ids.InvalidId:
            return None
        await self._caught_up(owner)
        record = self._uploads.get(owner.key, {}).get(file_id)
        return record if record is not None and self._alive(record) else None

    async def all_of(self, owner: records.Owner) -> list[records.Upload]:
        """The owner's files, oldest first. Raises log.LogUnavailable."""
        await self._caught_up(owner)
        return [each for each in self._uploads.get(owner.key, {}).values() if self._alive(each)]

    async def content(self, record: records.Upload) -> bytes:
        """The bytes of a file. Raises log.HistoryLost, log.LogUnavailable."""
        return await self.at(record.sha256, record.file)

    async def at(self, sha256: str, place: protocol_files.Place) -> bytes:
        """The bytes at a place. Raises like `content`."""
        return await log_files.read(self._ranges, sha256, place)

    async def part(self, file_id: str, owner: records.Owner, where: str) -> dict[str, Any]:
        """A file as a part of a message: an image, or text and its `filename`.

        Raises:
            errors.ApiError: 400, the owner has no such file.
            log.LogUnavailable
        """
        record = await self.find(file_id, owner)
        if record is None:
            raise errors.file_unknown(file_id, where)
        if record.width:
            size = images.Size(record.media, record.width, record.height)
            return images.image_part(record.sha256, size, None, file=record.file.member())
        try:
            data = await self.content(record)
        except log.HistoryLost as error:
            raise errors.file_unknown(file_id, where) from error
        text = images.as_text(record.filename, data.decode())
        return {"type": "text", "text": text, "filename": record.filename}

    async def delete(self, record: records.Upload) -> None:
        """Delete a file. Raises log.AppendFailed."""
        await self._append(msgspec.structs.replace(record, deleted=True))

    async def _append(self, record: records.Upload) -> None:
        value = records.encode(record)
        partition = partition_of(record.owner)
        await self._writer.append(
            topics.UPLOADS, partition, record.id, value, telemetry.trace_headers()
        )

    async def _caught_up(self, owner: records.Owner) -> None:
        """Wait until the owner's records are read up to the log's present end.

        Raises:
            log.LogUnavailable
        """
        await self._topic.caught_up([partition_of(owner)])

    def _check_room(self, owner: records.Owner, size: int) -> None:
        live = [
            each for each in self._uploads.get(owner.key, {}).values() if not self._expired(each)
        ]
        if len(live) >= MAX_FILES or sum(each.file.bytes for each in live) + size > MAX_TOGETHER:
            raise errors.too_many_files(
                MAX_FILES, MAX_TOGETHER, min(each.expires for each in live) - self._clock()
            )

    def _alive(self, record: records.Upload) -> bool:
        return not record.deleted and not self._expired(record)

    def _expired(self, record: records.Upload) -> bool:
        return self._clock() >= record.expires

    async def _on_batch(self, batch: list[log.Record]) -> None:
        self._fold(batch)
        if self._monotonic() >= self._forget_at:
            self._forget_at = self._monotonic() + FORGET_EVERY_S
            self._forget()

    def _fold(self, batch: list[log.Record]) -> None:
        for each in batch:
            record = records.upload_of(each.key, each.value)
            if record is None:
                if each.value is not None:
                    telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
                continue
            mine = self._uploads.setdefault(record.owner.key, {})
            before = mine.get(record.id)
            if before is None or _follows(record, before):
                mine[record.id] = record

    def _forget(self) -> None:
        for key, mine in list(self._uploads.items()):
            remaining = {i: each for i, each in mine.items() if not self._expired(each)}
            if remaining:
                self._uploads[key] = remaining
            else:
                del self._uploads[key]


def _derive(owner: records.Owner, key: str) -> bytes:
    """Bytes in place of the random bytes of an id. They need not be secret, because only the owner
    may read a file."""
    text = f"{owner.key}\0{key}".encode(errors="surrogatepass")
    return hashlib.blake2b(text, digest_size=ids.RANDOM_BYTES, person=b"upload").digest()


def _alike(one: records.Upload, other: records.Upload) -> bool:
    """Whether two records describe one file: same content, name and purpose."""
    return (one.sha256, one.filename, one.purpose) == (other.sha256, other.filename, other.purpose)


def _same(before: records.Upload, sha256: str, upload: uploads.UploadForm) -> records.Upload:
    """The file of a key, if `upload` is the same file. Raises errors.ApiError."""
    identity = (sha256, upload.filename, upload.purpose, upload.lives_s)
    lives_s = before.expires - before.created
    if (before.sha256, before.filename, before.purpose, lives_s) != identity:
        raise errors.idempotency_key_reused()
    if before.deleted:
        raise errors.file_deleted(before.id)
    return before


def _follows(record: records.Upload, before: records.Upload) -> bool:
    """Whether a record replaces the one before it. A deleted file stays deleted, and of two
    contents under one idempotency key the first is valid until it has expired."""
    if record.created >= before.expires:
        return True
    return not before.deleted and _alike(record, before)


def partition_of(owner: records.Owner) -> int:
    """The partition of an owner's files in `llm.uploads`."""
    return zlib.crc32(owner.key.encode()) % _PARTITIONS
