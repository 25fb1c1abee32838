"""Watch sockets: whose client takes nothing, and which follow a feed."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import types
from typing import Any

from starlette.websockets import WebSocketState

from tailrace import settings
from tailrace.auth.principal import Principal
from tailrace.delivery import feed
from tailrace.protocol import close_codes, errors, records
from tailrace.web import credential_timer, drain, shares, watch_sender, watch_socket, write_deadline
from tests.support import collected, waiting

GATE: Any = types.SimpleNamespace(
    clock=lambda: 0.0, later=credential_timer.on_loop, rates=shares.Rates(settings.Limits())
)


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


class Talking:
    """A client that sends these commands and notes what it is told."""

    application_state = WebSocketState.CONNECTED

    def __init__(self, *commands: dict[str, Any]) -> None:
        self.commands = [json.dumps(command) for command in commands]
        self.told: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self.commands:
            return {"type": "websocket.receive", "text": self.commands.pop(0)}
        await asyncio.sleep(0.05)
        return {"type": "websocket.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.told.append(json.loads(message["text"]))

    async def close(self, code: int, _reason: str) -> None: ...


class Feeds:
    """Gives feeds, or refuses them."""

    def __init__(self, refused: errors.ApiError | None = None) -> None:
        self.refused = refused
        self.open = 0

    def watch(self, owner: records.Owner, _after: object, _on_ready: object) -> feed.Subscription:
        if self.refused is not None:
            raise self.refused
        self.open += 1
        return feed.Subscription(owner, bytes(4), (0, 0), self._closed, None)

    def _closed(self, _subscription: feed.Subscription) -> None:
        self.open -= 1


class Waiting:
    """A delivery whose look-ups take for ever."""

    async def watch(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()


async def told(feeds: Feeds, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    socket: Any = Talking(*commands)
    every: Any = feeds
    deliver: Any = Waiting()
    principal = Principal("issuer", "subject", None, frozenset(), 2_000_000_000)
    connection = watch_socket.WatchConnection(socket, deliver, principal, GATE, None, every)
    await asyncio.wait_for(connection.run(drain.Draining()), 5)
    assert feeds.open == 0
    found: list[dict[str, Any]] = socket.told
    return found


def watches(count: int) -> list[dict[str, Any]]:
    return [{"type": "watch", "response_id": f"resp_{n}"} for n in range(count)]


async def test_a_feed_counts_as_one_of_the_watches() -> None:
    feeds = Feeds()
    assert await told(feeds, *watches(watch_socket.MAX_WATCHES - 1), {"type": "feed"}) == []
    [refused] = await told(feeds, *watches(watch_socket.MAX_WATCHES), {"type": "feed"})
    assert (refused["response_id"], refused["error"]["code"]) == (None, "watch_limit_reached")
    [refused] = await told(feeds, {"type": "feed"}, *watches(watch_socket.MAX_WATCHES))
    assert refused["response_id"] == f"resp_{watch_socket.MAX_WATCHES - 1}"
    again = [{"type": "feed"}] * 3 + [{"type": "unfeed"}]
    assert await told(feeds, *again, *watches(watch_socket.MAX_WATCHES)) == []


async def test_a_feed_too_many_is_refused_on_the_socket() -> None:
    [refused] = await told(Feeds(errors.too_many_feeds(32, 1.0)), {"type": "feed"})
    assert (refused["type"], refused["status"]) == ("watch.error", 429)
    assert "32 feeds" in refused["error"]["message"]


async def test_no_response_is_called_like_the_feed() -> None:
    feeds = Feeds()
    [refused] = await told(
        feeds,
        {"type": "feed"},
        {"type": "watch", "response_id": feed.NAME},
        {"type": "unwatch", "response_id": feed.NAME},
        *watches(watch_socket.MAX_WATCHES - 1),
    )
    assert (refused["response_id"], refused["status"]) == (feed.NAME, 404)
