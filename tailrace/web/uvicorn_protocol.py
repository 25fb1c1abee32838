"""uvicorn's WebSocket protocol, with less of it kept while a socket is open.

Of these sockets there are thousands that say nothing. What uvicorn keeps for each is a queue of
four deques for messages that are read one by one, and the handshake, which nobody asks for again: a
sixth of what an idle socket takes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request


class Inbox:
    """As much of `asyncio.Queue` as the protocol uses: one reader, no bound (the protocol pauses
    reading by itself).

    Attributes:
        _items: what came and was not read; None while there is nothing.
        _waiter: of the reader, while it waits.
    """

    __slots__ = ("_items", "_waiter")

    def __init__(self) -> None:
        self._items: deque[Any] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def empty(self) -> bool:
        """Whether nothing waits to be read."""
        return not self._items

    def put_nowait(self, item: Any) -> None:
        """Never waits."""
        if self._items is None:
            self._items = deque()
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Any:
        """The oldest item; safe to cancel."""
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
        """The handshake's request becomes the application's scope; nothing else is wanted of it."""
        super().handle_connect(event)
        self.request = None
