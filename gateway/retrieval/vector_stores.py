"""Vector stores, folded from the log, and operations on them.

Every gateway holds the whole of `llm.vector_stores`: the stores and their files. A query first
reads up to the log's end. The passages of files are in `gateway.retrieval.passages`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gateway.parsing import vector_stores_api
from tailrace import log, telemetry
from tailrace.delivery.whole_topic import WholeTopic
from tailrace.log import interfaces
from tailrace.protocol import errors, ids, records, topics
from tailrace.protocol import vector_stores as acts

MAX_STORES: Final = 500  # of one owner
USED_EVERY_S: Final = 600  # a use is recorded at most this often
RANDOM_BYTES: Final = 15


class VectorStores:
    """Reads and changes the stores of their owners.

    Attributes:
        name: of this process; unique.
        changed: set when records were folded; the waiter clears it.
        read_at: when this process last read a record of each file, by attachment (seconds of
            `monotonic`).
    """

    def __init__(
        self,
        name: str,
        incarnation: bytes,
        reader: interfaces.TailReader,
        offsets: interfaces.OffsetQueries,
        writer: interfaces.RecordWriter,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`incarnation`: the tag of the log."""
        self.name = name
        self.changed = asyncio.Event()
        self.read_at: dict[str, float] = {}
        self._incarnation = incarnation
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._monotonic = monotonic
        self._topic = WholeTopic(topics.VECTOR_STORES, reader, offsets, self._on_batch)
        self._stores = acts.Stores()

    @property
    def ready(self) -> bool:
        """Whether the log was read up to its end at the start of this process."""
        return self._topic.ready

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await self._topic.run()
        finally:
            await self._reader.stop()

    def all_stores(self) -> Iterable[acts.Store]:
        """All stores read so far, also those being erased."""
        return list(self._stores)

    def at_once(self, name: str) -> acts.Store | None:
        """A store as read so far, of any owner."""
        return self._stores.find(name)

    async def create(
        self, owner: records.Owner, fields: vector_stores_api.StoreFields
    ) -> acts.Store:
        """A new store without files.

        Raises:
            errors.ApiError: 400, the owner has the maximum of stores.
            log.LogUnavailable, log.AppendFailed
        """
        await self.catch_up([acts.partition(owner)])
        if len(self._stores.for_owner(owner)) >= MAX_STORES:
            raise errors.vector_store_full(MAX_STORES, "vector stores")
        address = ids.Address(self._incarnation, acts.partition(owner), 0)
        name = ids.mint(address, os.urandom(ids.RANDOM_BYTES), acts.PREFIX)
        await self.append(
            acts.Created(name, owner, int(self._clock())), _change_record(name, owner, fields)
        )
        return await self.find(name, owner)

    async def find(self, name: str, owner: records.Owner) -> acts.Store:
        """The owner's store.

        Raises:
            errors.ApiError: 404, the owner has no such store.
            log.LogUnavailable
        """
        if acts.valid_id(name) is None:
            raise errors.vector_store_not_found(name)
        await self.catch_up([acts.partition(owner)])
        store = self._stores.find(name)
        if store is None or store.owner != owner or store.leaving:
            raise errors.vector_store_not_found(name)
        return store

    async def all_of(self, owner: records.Owner) -> list[acts.Store]:
        """The owner's stores, oldest first. Raises log.LogUnavailable."""
        await self.catch_up([acts.partition(owner)])
        return self._stores.for_owner(owner)

    async def change(self, store: acts.Store, fields: vector_stores_api.StoreFields) -> acts.Store:
        """Change a store's name, description, metadata or expiry. Raises like `create`."""
        await self.append(_change_record(store.id, store.owner, fields, store))
        return await self.find(store.id, store.owner)

    async def record_use(self, store: acts.Store) -> None:
        """Record a use of the store, if it expires. Raises log.AppendFailed."""
        now = int(self._clock())
        if store.days and now - store.used >= USED_EVERY_S:
            await self.append(acts.Used(store.id, store.owner, now))

    async def attach(
        self,
        store: acts.Store,
        upload: records.Upload,
        addition: vector_stores_api.Addition,
        batch: str = "",
    ) -> acts.File:
        """Add a file. It is in the log when this returns; its passages follow later. A file that is
        already in the store stays, unless its chunking differs.

        Raises:
            errors.ApiError: 400, the store has the maximum of files.
            log.LogUnavailable, log.AppendFailed
        """
        before = store.present.get(upload.id)
        chunking = addition.chunking
        if before is not None:
            same = (before.act.size, before.act.overlap) == (chunking.size, chunking.overlap)
            if same and before.status in ("in_progress", "completed") and not batch:
                if before.attributes != addition.attributes:
                    return await self.describe(store, before, addition.attributes)
                return before
            await self.detach(store, before)
        if len(store.files) >= acts.MAX_FILES:
            raise errors.vector_store_full(acts.MAX_FILES, "files in a vector store")
        act = acts.Attached(
            id=store.id,
            by=store.owner,
            attachment=acts.FILE_PREFIX + secrets.token_urlsafe(RANDOM_BYTES),
            file=upload.id,
            filename=upload.filename,
            sha256=upload.sha256,
            place=upload.file,
            created=int(self._clock()),
            gateway=self.name,
            size=chunking.size,
            overlap=chunking.overlap,
            attributes=addition.attributes,
            batch=batch,
        )
        await self.append(act)
        current = await self.find(store.id, store.owner)
        mine = current.files.get(act.attachment)
        if (mine is None or mine.detached) and upload.id in current.present:
            # Another call has just added it. The attachment of this call is being erased.
            if mine is not None:
                await self.detach(current, mine)
            return await self.attach(current, upload, addition, batch)
        return mine or acts.File(act, act.attributes)

    async def describe(
        self, store: acts.Store, file: acts.File, attributes: dict[str, acts.Value]
    ) -> acts.File:
        """Give a file other attributes. Raises like `find`, and log.AppendFailed."""
        await self.append(acts.Described(store.id, store.owner, file.act.attachment, attributes))
        current = await self.find(store.id, store.owner)
        return current.files.get(file.act.attachment, file)

    async def detach(self, store: acts.Store, file: acts.File) -> None:
        """Remove a file. Its records are erased later. Raises log.AppendFailed,
        log.LogUnavailable."""
        await self.append(acts.Detached(store.id, store.owner, file.act.attachment))
        await self.catch_up([acts.partition(store.owner)])

    async def delete(self, store: acts.Store) -> None:
        """Delete a store with its files. Raises like `detach`."""
        await self.append(acts.Deleting(store.id, store.owner))
        await self.catch_up([acts.partition(store.owner)])

    async def progress(self, store: acts.Store, file: acts.File, **now: object) -> None:
        """Record the progress of a file's passages; members that are not given stay. Raises
        log.AppendFailed."""
        before = file.progress or acts.Progress(
            store.id, store.owner, file.act.attachment, self.name
        )
        await self.append(msgspec.structs.replace(before, gateway=self.name, **now))

    async def erase(self, owner: records.Owner, keys: Sequence[str]) -> None:
        """Append tombstones, in order. Raises log.AppendFailed."""
        for key in keys:
            await self._writer.append(topics.VECTOR_STORES, acts.partition(owner), key, None)

    async def append(self, *changes: acts.Act) -> None:
        """Append acts of one owner, in order. Raises log.AppendFailed."""
        for act in changes:
            await self._writer.append(
                topics.VECTOR_STORES,
                acts.partition(act.by),
                acts.key(act),
                acts.encode(act),
                telemetry.trace_headers(),
            )

    async def catch_up(self, partitions: Sequence[int]) -> None:
        """Wait until these partitions are read up to their present end.

        Raises:
            log.LogUnavailable
        """
        await self._topic.caught_up(partitions)

    async def _on_batch(self, batch: list[log.Record]) -> None:
        for each in batch:
            act = acts.decode(each.key, each.value)
            if act is not None:
                self._stores.apply(act)
                if isinstance(act, acts.Attached | acts.Progress):
                    self.read_at[act.attachment] = self._monotonic()
            elif each.value is None and not each.forgery:
                self._stores.erase(each.key)
                self.read_at.pop(
                    (each.key or b"").decode(errors="replace").rpartition(":")[2], None
                )
            else:
                telemetry.IGNORED_RECORDS.labels(reason="garbage").inc()
        if batch:
            self.changed.set()


def _change_record(
    name: str,
    owner: records.Owner,
    fields: vector_stores_api.StoreFields,
    before: acts.Store | None = None,
) -> acts.Changed:
    """The change record of a store: given fields, and the former values of the others."""
    return acts.Changed(
        name,
        owner,
        fields.name if fields.name is not None else before.name if before else "",
        fields.description
        if fields.description is not None
        else (before.description if before else ""),
        fields.metadata if fields.metadata is not None else before.metadata if before else {},
        fields.days if fields.days is not None else before.days if before else 0,
    )
