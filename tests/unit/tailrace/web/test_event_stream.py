"""The one body of event streams: what the server sees of it, in which order, and what is logged
when it breaks."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest
from starlette.types import Message

from tailrace.delivery import outbox, revocations
from tailrace.protocol import events
from tailrace.web import admitted, drain, event_stream, write_deadline
from tests.support import collected, gateway_parts, log_contract, memory_delivery

ALICE = gateway_parts.ALICE


class Source:
    """One event, then the end; or `error`; or, if it `waits`, keep-alives only."""

    rid = "resp_1"

    def __init__(self, error: Exception | None = None, *, waits: bool = False) -> None:
        self.error = error
        self.waits = waits
        self.ended = False
        self.kept_alive = asyncio.Event()
        self.closed = 0
        self.given = 0

    async def next_events(self) -> list[events.Event]:
        self.given += 1
        if self.given == 1:
            one: Any = b"data: 1\n\n"
            self.ended = not self.waits and self.error is None
            return [one]
        if self.error is not None:
            raise self.error
        await self.kept_alive.wait()
        self.kept_alive.clear()
        return []

    def keepalive(self) -> None:
        self.kept_alive.set()

    def close(self) -> None:
        self.closed += 1


def body_of(
    source: Source,
    draining: drain.Draining | None = None,
    interval_s: float = 60.0,
    known: revocations.Revocations | None = None,
) -> event_stream.EventStream[events.Event]:
    def encode(event: events.Event) -> bytes:
        return event  # type: ignore[return-value]

    checks = write_deadline.DeadlineChecks(interval_s=interval_s)
    return event_stream.EventStream(
        source,
        source.close,
        draining or drain.Draining(),
        checks,
        admitted.Admitted(known or memory_delivery.no_revocations()),
        ALICE,
        encode=encode,
        headers={"x-mine": "1"},
    )


async def stays() -> Message:
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


async def leaves() -> Message:
    return {"type": "http.disconnect"}


async def sent_by(
    body: event_stream.EventStream[events.Event], receive: Any = stays
) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        # The head takes a moment, as with a server whose buffer is full.
        await asyncio.sleep(0.01 if message["type"] == "http.response.start" else 0)
        sent.append(message)

    await asyncio.wait_for(body({"type": "http"}, receive, send), 5)
    return sent


async def test_nothing_is_written_before_the_head_and_the_last_events_go_with_the_end() -> None:
    source = Source()
    sent = await sent_by(body_of(source))
    assert [m["type"] for m in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1]["body"] == b"data: 1\n\n" + event_stream.DONE
    assert sent[-1]["more_body"] is False
    assert (b"x-mine", b"1") in sent[0]["headers"]
    # A proxy that compresses would keep events back.
    assert (b"cache-control", b"no-store, no-transform") in sent[0]["headers"]
    assert source.closed == 1


async def test_a_client_that_leaves_ends_the_body_without_its_last_part() -> None:
    source = Source(waits=True)
    sent = await sent_by(body_of(source), leaves)
    assert not any(m.get("more_body") is False for m in sent)
    assert source.closed == 1


async def test_draining_breaks_the_body_off() -> None:
    source, draining = Source(waits=True), drain.Draining()
    draining.begin()
    sent = await sent_by(body_of(source, draining))
    assert not any(m.get("more_body") is False for m in sent)
    assert source.closed == 1


async def test_events_that_are_there_follow_the_head_in_the_same_turn_of_the_loop() -> None:
    """The server makes one write of both."""
    sent: list[str] = []

    async def send(message: Message) -> None:
        sent.append(message["type"])
        asyncio.get_running_loop().call_soon(sent.append, "next turn")

    await asyncio.wait_for(body_of(Source())({"type": "http"}, stays, send), 5)
    assert sent[:2] == ["http.response.start", "http.response.body"]


async def test_a_server_that_refuses_the_head_still_closes_the_source(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source()

    async def refuse(_message: Message) -> None:
        raise OSError("closed")

    with caplog.at_level("INFO", "tailrace"):
        await body_of(source)({"type": "http"}, stays, refuse)
    assert [record.getMessage() for record in caplog.records] == ["request_failed"]
    assert source.closed == 1


async def test_an_unexpected_failure_breaks_the_body_off_and_is_logged_with_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(KeyError("ours"))
    with caplog.at_level("INFO", "tailrace"):
        sent = await sent_by(body_of(source))
    assert not any(m.get("more_body") is False for m in sent)
    (record,) = caplog.records
    assert record.getMessage() == "request_failed"
    assert record.exc_info is not None
    assert record.exc_info[2] is not None
    assert source.closed == 1


async def test_an_outbox_that_overflows_breaks_the_body_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = Source(outbox.Slow())
    with caplog.at_level("INFO", "tailrace"):
        sent = await sent_by(body_of(source))
    assert not any(m.get("more_body") is False for m in sent)
    assert [(r.getMessage(), r.__dict__["fields"]["reason"]) for r in caplog.records] == [
        ("stream_broken", "Slow")
    ]


async def test_a_client_that_has_had_nothing_for_long_gets_keep_alives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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

    body = body_of(Source(waits=True), interval_s=0.01)
    await asyncio.wait_for(body({"type": "http"}, leaves_then, send), 5)
    assert [m.get("body") for m in sent[1:]] == [b"data: 1\n\n", *[event_stream.KEEP_ALIVE] * 3]


async def test_a_client_that_takes_nothing_is_cut_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_deadline, "WRITE_DEADLINE_S", 0.05)
    source = Source()

    async def stuck(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    body = body_of(source, interval_s=0.01)
    with caplog.at_level("INFO", "tailrace"):
        await asyncio.wait_for(body({"type": "http"}, stays, stuck), 5)
    assert [(r.getMessage(), r.__dict__["fields"]["reason"]) for r in caplog.records] == [
        ("stream_broken", "TimeoutError")
    ]
    assert source.closed == 1


async def test_a_body_of_a_revoked_credential_is_broken_off_without_an_end() -> None:
    known = memory_delivery.no_revocations()
    source = Source(waits=True)
    body = body_of(source, known=known)
    answering = asyncio.create_task(sent_by(body))
    await log_contract.until(lambda: source.given > 1, 5)
    gateway_parts.revoke(known, ALICE)
    sent = await asyncio.wait_for(answering, 5)
    assert [message.get("body", b"") for message in sent][1:] == [b"data: 1\n\n"]
    assert source.closed == 1


async def test_a_body_that_has_ended_is_freed_with_the_events_that_it_sent() -> None:
    source = Source()
    body = body_of(source)
    there = weakref.ref(body)
    with collected.by_hand():
        await sent_by(body)
        del body
        assert there() is None
