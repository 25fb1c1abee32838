"""The one body of event streams: what the server sees of it, in which order, and what is said when
it breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Send

from tailrace.web import event_stream


class Body(event_stream.EventBody):
    """Writes one part, then the last one, unless it fails with `error` or `waits` for ever."""

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        super().__init__("resp_1", {"x-mine": "1"})
        self.error = error
        self.waits = waits
        self.nudged = asyncio.Event()
        self.released = 0

    async def pump(self, send: Send) -> None:
        await self.write(send, b"data: 1\n\n")
        if self.error is not None:
            raise self.error
        while self.waits:
            await self.nudged.wait()
            self.nudged.clear()
            await self.write(send, event_stream.KEEP_ALIVE)
        await self.write(send, event_stream.DONE, more=False)

    def nudge(self) -> None:
        self.nudged.set()

    def release(self) -> None:
        self.released += 1


async def stays() -> Message:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def leaves() -> Message:
    return {"type": "http.disconnect"}


async def sent_by(body: Body, receive: Any = stays) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        await asyncio.sleep(
            0.01 if message["type"] == "http.response.start" else 0
        )  # as with a server whose buffer is full when the head comes
        sent.append(message)

    await asyncio.wait_for(body({"type": "http"}, receive, send), 5)
    return sent


async def test_nothing_is_written_before_the_head() -> None:
    body = Body()
    sent = await sent_by(body)
    assert [m["type"] for m in sent] == [
        "http.response.start",
        "http.response.body",
        "http.response.body",
    ]
    assert sent[-1] == {"type": "http.response.body", "body": event_stream.DONE, "more_body": False}
    assert (b"x-mine", b"1") in sent[0]["headers"]
    assert body.released == 1


async def test_a_client_that_leaves_ends_the_body_without_its_last_part() -> None:
    body = Body(waits=True)
    sent = await sent_by(body, leaves)
    assert not any(m.get("more_body") is False for m in sent)
    assert body.released == 1


async def test_a_server_that_refuses_the_head_still_gives_the_subscription_back() -> None:
    body = Body()

    async def refuse(_message: Message) -> None:
        raise OSError("closed")

    with pytest.raises(OSError, match="closed"):
        await body({"type": "http"}, stays, refuse)
    assert body.released == 1


async def test_a_failure_nobody_expected_breaks_the_body_off_and_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    body = Body(KeyError("ours"))
    with caplog.at_level("INFO", "tailrace"):
        sent = await sent_by(body)
    assert not any(m.get("more_body") is False for m in sent)
    assert [r.getMessage() for r in caplog.records] == ["request_failed"]
    assert body.released == 1


async def test_a_client_that_has_had_nothing_for_long_gets_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "LOOK_S", 0.01)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 0.05)
    sent: list[Message] = []
    enough = asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message)
        if sum(m.get("body") == event_stream.KEEP_ALIVE for m in sent) == 3:
            enough.set()

    async def leaves_then() -> Message:
        await enough.wait()
        return {"type": "http.disconnect"}

    await asyncio.wait_for(Body(waits=True)({"type": "http"}, leaves_then, send), 5)
    assert [m.get("body") for m in sent[1:]] == [b"data: 1\n\n", *[event_stream.KEEP_ALIVE] * 3]


async def test_a_client_that_takes_nothing_is_cut_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(event_stream, "LOOK_S", 0.01)
    monkeypatch.setattr(event_stream, "WRITE_DEADLINE_S", 0.05)
    body = Body()

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with caplog.at_level("INFO", "tailrace"):
        await asyncio.wait_for(body({"type": "http"}, stays, stuck), 5)
    assert [(r.getMessage(), r.__dict__["fields"]["reason"]) for r in caplog.records] == [
        ("stream_broken", "TimeoutError")
    ]
    assert body.released == 1
