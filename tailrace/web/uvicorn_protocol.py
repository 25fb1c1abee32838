"""uvicorn's WebSocket protocol, with less of it kept while a socket is open.

There are thousands of sockets that say nothing. For each uvicorn keeps a queue of four deques for
messages that are read one by one, and the request of the handshake, which nothing reads again:
together 4 KiB, a sixth of what an idle socket takes.

The class stands on names that uvicorn does not document. `missing` says which of them are gone;
then `chosen` returns uvicorn's own class, which does the same with more memory.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import deque
from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from tailrace import telemetry

TRIED_WITH = "0.54"


class Inbox:
    """As much of `asyncio.Queue` as the protocol uses: one reader, no bound (the protocol pauses
    reading by itself).

    Attributes:
        _items: what came and was not read; None while there is nothing.
        _waiter: of the reader, while it waits; None otherwise.
    """

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: deque[Any] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Whether nothing waits to be read."""
        return not self._items

    def put_nowait(self, item: Any) -> None:
        """Add an item; never waits."""
        if self._items is None:
            self._items = deque()
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """Wait for the oldest item and remove it. Safe to cancel."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        item = self._items.popleft()
        if not self._items:
            self._items = None
        return item


class Protocol(WebSocketsSansIOProtocol):
    """One connection."""

    queue: Any
    request: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.queue = Inbox()

    def handle_connect(self, event: Request) -> None:
        """Answer the handshake. Its request is in the application's scope from then on."""
        super().handle_connect(event)
        self.request = None


def missing(base: type = WebSocketsSansIOProtocol) -> list[str]:
    """What `Protocol` relies on and `base` does not have; empty when all is there."""
    try:
        source = inspect.getsource(base)
    except (OSError, TypeError):
        return ["its source"]
    relied_on = {
        "handle_connect": hasattr(base, "handle_connect"),
        "queue": "self.queue" in source,
        "queue.put_nowait": "self.queue.put_nowait(" in source,
        "queue.get": "await self.queue.get()" in source,
        "request, set and not read": re.findall(r"self\.request\b( = )?", source) == [" = "],
    }
    used = {part.split("(")[0].split(")")[0] for part in source.split("self.queue.")[1:]}
    others = sorted(f"queue.{name}" for name in used if not hasattr(Inbox, name))
    return [name for name, there in relied_on.items() if not there] + others


def chosen(base: type = WebSocketsSansIOProtocol) -> Any:
    """The class of WebSocket connections: `Protocol`, or uvicorn's own where it has changed."""
    if changed := missing(base):
        telemetry.log(
            telemetry.Action.NOTE,
            part="uvicorn_protocol",
            version=uvicorn.__version__,
            tried_with=TRIED_WITH,
            changed=changed,
        )
        return "websockets-sansio"
    return Protocol
