"""Puts rows into a vector store, and waits until their passages can be found there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pipelines import definition
from pipelines.documents import Document
from pipelines.gateway import Gateway, InStore, Rejected
from pipelines.rows import Refused, Row, Rows, Stored
from pipelines.templates import Unusable

_logger = logging.getLogger(__name__)

FIRST_LOOK_S: Final = 0.1
MOST_LOOK_S: Final = 1.0
MOST_EXPIRED: Final = 20  # uploads of a row that expired before they were attached
# The embedding model refused, or the file was taken out. Everything else stays as it is.
_AGAIN: Final = frozenset({"server_error", "vector_store_file_not_found"})


class Arrivals:
    """Waits for files of one store: all rows of a runner look together.

    Attributes:
        _waiting: for each row that waits, its file.
        _looking: looks as long as a row waits.
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
        self._waiting: dict[asyncio.Future[InStore], str] = {}
        self._looking: asyncio.Task[None] | None = None

    async def ended(self, file: str) -> InStore:
        """The file once it is not in progress any more. Raises Rejected."""
        waiting: asyncio.Future[InStore] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = file
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await waiting
        finally:
            self._waiting.pop(waiting, None)

    async def _look(self) -> None:
        pause_s = FIRST_LOOK_S
        while self._waiting:
            await self._sleep(pause_s)
            asked = dict(self._waiting)
            try:
                found = await self._gateway.in_store(self._store, frozenset(asked.values()))
            except Exception as error:
                # Each row tells its own outcome; without this it would wait without end.
                _tell(asked, error)
                continue
            some = False
            for waiting, file in asked.items():
                if found[file].status != "in_progress" and not waiting.done():
                    waiting.set_result(found[file])
                    self._waiting.pop(waiting, None)
                    some = True
            pause_s = FIRST_LOOK_S if some else min(MOST_LOOK_S, 2 * pause_s)


def _tell(waiting: dict[asyncio.Future[InStore], str], error: Exception) -> None:
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

    async def outcome(self, row: Row) -> Stored | Refused:
        """The row's file once it can be found. Waits for as long as it takes.

        The same row leads to the same file, whichever revision and whichever runner: its upload has
        a key of its place and its content.
        """
        try:
            document = self._rows.document(row)
        except Unusable as error:
            return Refused("embed", str(error))
        key = f"{self._pipeline.name}/{row.place}/{document.digest}"
        failed = 0
        while True:
            try:
                found = await self._stored(document, key)
            except Rejected as error:
                return Refused(error.code, str(error), requests=failed)
            if found.status == "completed":
                return Stored(found.file, self._store, found.passages, failed + 1)
            failed += 1
            _logger.warning(
                "%s: attempt %d of %s, %s: %s %s",
                self._pipeline.name,
                failed,
                row.place,
                found.file,
                found.status,
                found.code,
            )
            if found.code not in _AGAIN or failed >= self._pipeline.attempts:
                return Refused(found.code or found.status, found.message, requests=failed)

    async def _stored(self, document: Document, key: str) -> InStore:
        for expired in range(MOST_EXPIRED):
            file = await self._gateway.upload(document, key)
            try:
                found = await self._gateway.attach(self._store, file, document.attributes)
            except Rejected as error:
                # It was refused for so long that the upload has expired.
                unknown = (error.code, error.param) == ("invalid_value", "file_id")
                if not unknown or expired == MOST_EXPIRED - 1:
                    raise
                continue
            break
        if found.status != "in_progress":
            return found
        return await self._arrivals.ended(file)
