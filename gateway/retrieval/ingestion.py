"""Creates the passages of files added to vector stores, and erases those of deleted files.

The log shows the open work, so another gateway continues the work of one that ended: a file in
progress without a heartbeat for a while. Two gateways that work on the same file write the same
records. A batch of passages is charged once, because its embeddings have an idempotency key.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from gateway.files import uploads
from gateway.parsing import file_text
from gateway.retrieval import embedder, vector_stores
from gateway.retrieval.embedder import Embedder
from gateway.retrieval.passages import Passages
from tailrace import log, telemetry
from tailrace.auth.principal import DEFAULT_SCOPES, Principal
from tailrace.protocol import errors, records
from tailrace.protocol import vector_stores as acts
from tailrace.vectors import contract

MAX_PASSAGES: Final = 10_000  # of one file; fewer than one answer of the database holds
TAKEOVER_S: Final = 15.0  # without a heartbeat for this long its gateway is lost
HEARTBEAT_S: Final = 4.0  # interval of a gateway's heartbeat for a file
RETRY_S: Final = 5.0
CHECK_S: Final = 1.0
AT_ONCE: Final = 2  # files of one gateway
_CREDENTIAL_S: Final = 3_600
_TEMPORARY: Final = (408, 409, 425, 429)


class _FileError(Exception):
    """A file can never have passages. Its owner sees the code and the message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(code)
        self.code: Final = code
        self.message: Final = message


class Ingestion:
    """The ingestion of one gateway.

    Attributes:
        _running: the owner's key and the task, by the name of an attachment or a store.
        _not_before: the earliest retry, by the same name (seconds of `monotonic`).
        _attempts: number of failed embeddings of a file here, by attachment.
    """

    def __init__(
        self,
        stores: vector_stores.VectorStores,
        passages: Passages,
        files: uploads.Uploads,
        embedder: Embedder,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stores = stores
        self._passages = passages
        self._files = files
        self._embedder = embedder
        self._clock = clock
        self._monotonic = monotonic
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._not_before: dict[str, float] = {}
        self._attempts: collections.Counter[str] = collections.Counter()

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                self._stores.changed.clear()
                if self._stores.ready:
                    self._begin()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_S):
                        await self._stores.changed.wait()
        finally:
            running = [task for _, task in self._running.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _begin(self) -> None:
        """Start jobs up to the limit. Next is a job of the owner with the fewest running jobs."""
        self._running = {n: each for n, each in self._running.items() if not each[1].done()}
        now = self._monotonic()
        jobs = [
            (name, store, file)
            for name, store, file in self._jobs()
            if name not in self._running and self._not_before.get(name, now) <= now
        ]
        while jobs and len(self._running) < AT_ONCE:
            busy = collections.Counter(key for key, _ in self._running.values())
            job = min(jobs, key=lambda each: busy[each[1].owner.key])
            jobs.remove(job)
            name, store, file = job
            work = asyncio.ensure_future(self._run(name, store, file))
            self._running[name] = (store.owner.key, work)

    def _jobs(self) -> Iterator[tuple[str, acts.Store, acts.File | None]]:
        """The jobs of this gateway: files to erase, deleted stores without files, new files."""
        now = self._clock()
        for store in self._stores.all_stores():
            store_leaves = store.leaving or store.expired(now)
            for name, file in list(store.files.items()):
                if (
                    store_leaves
                    or file.detached
                    or (file.status == "in_progress" and self._mine(file))
                ):
                    yield name, store, file
            if store.leaving and not store.files:
                yield store.id, store, None

    def _mine(self, file: acts.File) -> bool:
        heard_at = self._stores.read_at.get(file.act.attachment, self._monotonic())
        return file.gateway == self._stores.name or self._monotonic() - heard_at > TAKEOVER_S

    async def _run(self, name: str, store: acts.Store, file: acts.File | None) -> None:
        """Run a job. A failure is retried later."""
        try:
            if file is None:
                await self._stores.erase(store.owner, acts.keys_of_store(store.id))
            elif store.leaving or store.expired(self._clock()) or file.detached:
                await self._erase(store, file)
            else:
                await self._make(store, file)
            self._not_before.pop(name, None)
            self._attempts.pop(name, None)
            await self._stores.catch_up([acts.partition(store.owner)])
        except (errors.ApiError, log.AppendFailed, log.LogUnavailable) as error:
            self._attempts[name] += 1
            self._not_before[name] = self._monotonic() + RETRY_S
            reason = str(error.code) if isinstance(error, errors.ApiError) else "log"
            telemetry.log(telemetry.Action.WAITING, part="vector store", reason=reason)
        except Exception as error:
            self._not_before[name] = self._monotonic() + RETRY_S
            telemetry.log(telemetry.Action.TASK_FAILED, exc_info=error)

    async def _erase(self, store: acts.Store, file: acts.File) -> None:
        """Erase a file: its passages first, so that a successor knows how many there are."""
        attachment = file.act.attachment
        await self._passages.erase(store.id, attachment, file.passages)
        await self._stores.erase(store.owner, acts.keys_of_file(store.id, attachment))

    async def _make(self, store: acts.Store, file: acts.File) -> None:
        try:
            pieces = await self._pieces(file)
            await self._stores.progress(store, file, passages=len(pieces))
            size = await self._write_with_heartbeat(store, file, pieces)
        except _FileError as error:
            await self._stores.progress(
                store, file, status="failed", code=error.code, message=error.message
            )
            return
        if self._in_progress(store, file):
            await self._stores.progress(
                store, file, status="completed", passages=len(pieces), bytes=size
            )
        elif not self._is_completed(store, file):
            # It may have been erased before the last passages were written.
            await self._passages.erase(store.id, file.act.attachment, len(pieces))

    async def _pieces(self, file: acts.File) -> list[str]:
        """The pieces of a file's text."""
        try:
            data = await self._files.at(file.act.sha256, file.act.place)
        except log.HistoryLost as error:
            raise _FileError("server_error", "The file was lost before it was read.") from error
        try:
            text = await asyncio.to_thread(file_text.text_of, file.act.filename, data)
        except UnicodeDecodeError as error:
            raise _FileError("unsupported_file", "The file is not text in UTF-8.") from error
        pieces = await asyncio.to_thread(file_text.pieces, text, file.act.size, file.act.overlap)
        if not pieces:
            raise _FileError("invalid_file", "The file holds no text.")
        if len(pieces) > MAX_PASSAGES:
            raise _FileError("invalid_file", f"The file has more than {MAX_PASSAGES} chunks.")
        return pieces

    async def _write_with_heartbeat(
        self, store: acts.Store, file: acts.File, pieces: Sequence[str]
    ) -> int:
        """Write the missing passages, with heartbeats meanwhile. Returns like `_write`."""
        work = asyncio.ensure_future(self._write(store, file, pieces))
        try:
            while True:
                done, _ = await asyncio.wait([work], timeout=HEARTBEAT_S)
                if done:
                    return work.result()
                if self._in_progress(store, file):
                    await self._stores.progress(store, file, passages=len(pieces))
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _write(self, store: acts.Store, file: acts.File, pieces: Sequence[str]) -> int:
        """Embed and append the passages that are missing. Returns the bytes of the texts.

        Batches are split at the same places each time, so that a key always means the same texts.
        """
        model = self._embedder.model
        attachment = file.act.attachment
        there = await self._passages.numbers(store, attachment, model)
        attempt = self._attempts[attachment]
        for start in range(0, len(pieces), embedder.TOGETHER):
            texts = pieces[start : start + embedder.TOGETHER]
            if there.issuperset(range(start, start + len(texts))):
                continue
            if not self._in_progress(store, file):
                break
            vectors = await self._embed(file, f"{attachment}:{start}:{attempt}", texts)
            await self._passages.add(
                [
                    acts.Passage(
                        store.id, store.owner, attachment, start + index, text, model, vector
                    )
                    for index, (text, vector) in enumerate(zip(texts, vectors, strict=True))
                ]
            )
        return sum(len(text.encode()) for text in pieces)

    async def _embed(self, file: acts.File, key: str, texts: Sequence[str]) -> list[bytes]:
        principal = _principal(file.act, self._clock())
        try:
            return await self._embedder.embed(principal, texts, later=key)
        except errors.ApiError as error:
            if error.status >= 500 or error.status in _TEMPORARY:
                raise
            raise _FileError("server_error", error.message) from error

    def _in_progress(self, store: acts.Store, file: acts.File) -> bool:
        """Whether a file is still in its store and in progress, in the log as read so far."""
        return self._status(store, file) == "in_progress"

    def _is_completed(self, store: acts.Store, file: acts.File) -> bool:
        """Whether another gateway has completed it. Both have written the same passages."""
        return self._status(store, file) == "completed"

    def _status(self, store: acts.Store, file: acts.File) -> acts.Status | None:
        """The status of a file in its store, in the log as read so far; None: it is not in the
        store."""
        store_now = self._stores.at_once(store.id)
        file_now = store_now.files.get(file.act.attachment) if store_now is not None else None
        if store_now is None or store_now.leaving or file_now is None or file_now.detached:
            return None
        return file_now.status


def _principal(act: acts.Attached, now: float) -> Principal:
    """The principal that is charged. A revocation of the owner's earlier credentials applies to
    it."""
    owner: records.Owner = act.by
    return Principal(
        owner.issuer,
        owner.subject,
        owner.tenant or None,
        frozenset(DEFAULT_SCOPES),
        int(now) + _CREDENTIAL_S,
        issued_at=act.created,
    )


assert MAX_PASSAGES <= contract.MAX_ROWS
