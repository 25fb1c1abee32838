"""The sending side of one accepted WebSocket, and the reason to close it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from tailrace import telemetry
from tailrace.protocol import close_codes
from tailrace.web import write_deadline

CLOSE_DEADLINE_S: Final = 2.0


class ClientSocket:
    """Sends to a client that may be slow or disconnected.

    Attributes:
        verdict: the reason to close the socket; set once, by the first cause. None: the client
            left.
        closed: nothing can be sent any more.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._deadline = write_deadline.WriteDeadline()
        self.verdict: asyncio.Future[close_codes.CloseCode | None] = (
            asyncio.get_running_loop().create_future()
        )
        self.closed = False

    def decide(self, code: close_codes.CloseCode | None) -> None:
        """Set the verdict, unless it is set."""
        if not self.verdict.done():
            self.verdict.set_result(code)

    def task_done(self, task: asyncio.Future[Any]) -> None:
        """Done callback: a failed task closes the socket with an internal error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            telemetry.log(telemetry.Action.SOCKET_FAILED, exc_info=error)
            self.decide(close_codes.CloseCode.INTERNAL)

    async def receive(self) -> dict[str, Any]:
        """The next ASGI message."""
        return dict(await self._socket.receive())

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Send text frames. A client that does not read them in time is closed as slow."""
        if self.closed:
            return
        try:
            for body in bodies:
                with self._deadline:
                    await self._socket.send({"type": "websocket.send", "text": body.decode()})
        except (WebSocketDisconnect, RuntimeError):
            self.decide(None)  # the receiving side gets the disconnect too

    def check_deadlines(self, now: float) -> None:
        """Set the verdict SLOW if the client has read nothing for too long. `now`: monotonic
        seconds."""
        if self._deadline.overdue(now):
            self.decide(close_codes.CloseCode.SLOW)

    async def close(self, code: close_codes.CloseCode | None) -> None:
        """Send the close frame. None: the client left, and nothing is sent."""
        wire_code = close_codes.for_sdk(code) if code is not None else None
        telemetry.SOCKET_CLOSES.labels(
            code=str(int(wire_code)) if wire_code is not None else "client"
        ).inc()
        telemetry.log(
            telemetry.Action.SOCKET_CLOSED,
            code=wire_code,
            reason=code.name.lower() if code is not None else "client",
        )
        if (
            code is None
            or wire_code is None
            or self._socket.application_state is not WebSocketState.CONNECTED
        ):
            return
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError, OSError):
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await self._socket.close(int(wire_code), close_codes.TABLE[code].reason)
