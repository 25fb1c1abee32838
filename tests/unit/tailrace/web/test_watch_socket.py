"""What happens to a watch socket whose client takes nothing."""

from __future__ import annotations

import asyncio
import gc
import time
import types
from typing import Any

from starlette.websockets import WebSocketState

from tailrace import settings
from tailrace.auth.principal import Principal
from tailrace.protocol import close_codes
from tailrace.web import drain, shares, watch_sender, watch_socket, write_deadline
from tests.support import collected, waiting

GATE: Any = types.SimpleNamespace(clock=lambda: 0.0, rates=shares.Rates(settings.Limits()))


class Stuck:
    """A socket that asked for something that does not exist, and then never reads."""

    application_state = WebSocketState.CONNECTED

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.writing = asyncio.Event()
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if self._asked:
            await asyncio.Event().wait()
        self._asked = True
        return {"type": "websocket.receive", "text": '{"type":"watch"}'}

    async def send(self, _message: dict[str, Any]) -> None:
        self.writing.set()
        await asyncio.Event().wait()

    async def close(self, code: int, _reason: str) -> None:
        self.closed.append(code)


async def test_a_socket_that_takes_nothing_is_closed_once_the_time_is_over_and_not_before() -> None:
    socket: Any = Stuck()
    nothing: Any = None
    principal = Principal("issuer", "subject", None, frozenset(), 1_000)
    connection = watch_socket.WatchConnection(socket, nothing, principal, GATE, None, nothing)
    running = asyncio.create_task(connection.run(drain.Draining()))
    await asyncio.wait_for(socket.writing.wait(), 5)
    now = time.monotonic()
    connection.check_deadlines(now + write_deadline.WRITE_DEADLINE_S / 2)
    await asyncio.sleep(0.01)
    assert not running.done()
    connection.check_deadlines(now + write_deadline.WRITE_DEADLINE_S)
    await asyncio.wait_for(running, 5)
    assert socket.closed == [int(close_codes.CloseCode.SLOW)]


class Nagging:
    """A client that sends what is no command and never reads."""

    application_state = WebSocketState.CONNECTED

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.messages = 0

    async def receive(self) -> dict[str, Any]:
        self.messages += 1
        await asyncio.sleep(0)
        return {"type": "websocket.receive", "text": "no command"}

    async def send(self, _message: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    async def close(self, code: int, _reason: str) -> None:
        self.closed.append(code)


async def test_a_client_that_does_not_read_what_it_causes_is_closed_as_slow() -> None:
    socket: Any = Nagging()
    nothing: Any = None
    principal = Principal("issuer", "subject", None, frozenset(), 1_000)
    connection = watch_socket.WatchConnection(socket, nothing, principal, GATE, None, nothing)
    await asyncio.wait_for(connection.run(drain.Draining()), 5)
    assert socket.closed == [int(close_codes.CloseCode.SLOW)]
    assert socket.messages < watch_sender.MAX_NOTED_BYTES / 50


class Leaving(Nagging):
    """A client that sends what is no command, reads what it causes, and leaves."""

    async def receive(self) -> dict[str, Any]:
        message = await super().receive()
        return message if self.messages < 3 else {"type": "websocket.disconnect"}

    async def send(self, _message: dict[str, Any]) -> None: ...


async def test_a_socket_that_has_ended_is_freed_at_once() -> None:
    def left() -> int:
        return sum(isinstance(each, watch_socket.WatchConnection) for each in gc.get_objects())

    socket: Any = Leaving()
    nothing: Any = None
    principal = Principal("issuer", "subject", None, frozenset(), 1_000)
    with collected.by_hand():
        before = left()
        connection = watch_socket.WatchConnection(socket, nothing, principal, GATE, None, nothing)
        await asyncio.wait_for(connection.run(drain.Draining()), 5)
        del connection
        await waiting.eventually(lambda: left() == before, "the socket is freed", within_s=5)
