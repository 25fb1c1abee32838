"""Stores rows in a vector store, and waits until their passages can be found."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pipelines import definition
from pipelines.documents import Document
from pipelines.gateway import Gateway, Rejected, StoreFile
from pipelines.rows import Refusal, Row, Rows, StoredFile
from pipelines.templates import Unusable

_logger = logging.getLogger(__name__)

FIRST_POLL_S: Final = 0.1
MAX_POLL_S: Final = 1.0
MOST_EXPIRED: Final = 20  # uploads of a row that expired before they were attached
# The embedding model failed, or the file was removed. Other errors are final.
_AGAIN: Final = frozenset({"server_error", "vector_store_file_not_found"})


class Arrivals:
    """Waits for files of one store: one poll for all rows of a runner.

    Attributes:
        _waiting: the file of each waiting row.
        _poller: task that polls while a row waits.
    """

    def __init__(
        self,
        gateway: Gateway,
        store: str,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._gateway = gateway
        self._store = store
        self._sleep = sleep
        self._waiting: dict[asyncio.Future[StoreFile], str] = {}
        self._poller: asyncio.Task[None] | None = None

    async def wait_for(self, file: str) -> StoreFile:
        """The file once it is not in progress any more. Raises Rejected."""
        future: asyncio.Future[StoreFile] = asyncio.get_running_loop().create_future()
        self._waiting[future] = file
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def _poll(self) -> None:
        pause_s = FIRST_POLL_S
        while self._waiting:
            await self._sleep(pause_s)
            waiting_rows = dict(self._waiting)
            try:
                by_id = await self._gateway.files_in_store(
                    self._store, frozenset(waiting_rows.values())
                )
            except Exception as error:
                # Each row reports its own error; otherwise it would wait for ever.
                _fail(waiting_rows, error)
                continue
            any_ended = False
            for waiting, file in waiting_rows.items():
                if by_id[file].status != "in_progress" and not waiting.done():
                    waiting.set_result(by_id[file])
                    self._waiting.pop(waiting, None)
                    any_ended = True
            pause_s = FIRST_POLL_S if any_ended else min(MAX_POLL_S, 2 * pause_s)


def _fail(waiting: dict[asyncio.Future[StoreFile], str], error: Exception) -> None:
    for each in waiting:
        if not each.done():
            each.set_exception(error)


class Storing:
    """Stores rows of one pipeline with `embed`."""

    def __init__(
        self,
        pipeline: definition.Pipeline,
        rows: Rows,
        gateway: Gateway,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        assert pipeline.embed is not None
        self._pipeline = pipeline
        self._store = pipeline.embed.store
        self._rows = rows
        self._gateway = gateway
        self._arrivals = Arrivals(gateway, self._store, sleep=sleep)

    async def outcome(self, row: Row) -> StoredFile | Refusal:
        """The row's file once it can be found. Waits without a time limit.

        The same row leads to the same file, whichever revision and whichever runner: the key of its
        upload is made of its place and its content.
        """
        try:
            document = self._rows.document(row)
        except Unusable as error:
            return Refusal("embed", str(error))
        key = f"{self._pipeline.name}/{row.place}/{document.digest}"
        failures = 0
        while True:
            try:
                file = await self._store_document(document, key)
            except Rejected as error:
                return Refusal(error.code, str(error), requests=failures)
            if file.status == "completed":
                return StoredFile(file.file, self._store, file.passages, failures + 1)
            failures += 1
            _logger.warning(
                "%s: attempt %d of %s, %s: %s %s",
                self._pipeline.name,
                failures,
                row.place,
                file.file,
                file.status,
                file.code,
            )
            if file.code not in _AGAIN or failures >= self._pipeline.attempts:
                return Refusal(file.code or file.status, file.message, requests=failures)

    async def _store_document(self, document: Document, key: str) -> StoreFile:
        for attempt in range(MOST_EXPIRED):
            file = await self._gateway.upload(document, key)
            try:
                store_file = await self._gateway.attach(self._store, file, document.attributes)
            except Rejected as error:
                # Refusals lasted until the upload expired.
                unknown = (error.code, error.param) == ("invalid_value", "file_id")
                if not unknown or attempt == MOST_EXPIRED - 1:
                    raise
                continue
            break
        if store_file.status != "in_progress":
            return store_file
        return await self._arrivals.wait_for(file)
