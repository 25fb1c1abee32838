"""The queue between uvicorn's protocol and the application, and the bounds on frames."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tailrace.connections import caps, token_buckets, websocket_protocol
from tests.support import cases, waiting
from tests.unit.tailrace.connections.serving import HANDSHAKE, Server, frame, serving

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


async def test_items_come_in_order_also_those_put_before_anybody_reads() -> None:
    box = websocket_protocol.Inbox()
    assert box.empty()
    for i in range(3):
        box.put_nowait(i)
    assert not box.empty()
    assert [await box.get() for _ in range(3)] == [0, 1, 2]
    assert box.empty()


async def test_a_reader_that_waits_is_woken_and_reads_what_came_meanwhile() -> None:
    box = websocket_protocol.Inbox()
    reading = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put_nowait("a")
    box.put_nowait("b")
    assert await asyncio.wait_for(reading, 5) == "a"
    assert await asyncio.wait_for(box.get(), 5) == "b"


async def test_a_reader_that_is_cancelled_takes_nothing_with_it() -> None:
    box = websocket_protocol.Inbox()
    reading = asyncio.create_task(box.get())
    await asyncio.sleep(0)
    box.put_nowait("a")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await asyncio.wait_for(box.get(), 5) == "a"


def test_the_installed_uvicorn_has_all_that_the_class_relies_on() -> None:
    assert websocket_protocol.missing() == []
    assert websocket_protocol.protocol_class() is websocket_protocol.Protocol


class Renamed:
    """A uvicorn whose protocol keeps its messages elsewhere and reads the request later."""

    def handle_connect(self, event: object) -> None:
        self.request = event
        self.queue = [event]
        self.queue.append(self.request)


def test_with_a_uvicorn_that_changed_its_own_class_serves_and_one_line_says_what_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "tailrace"):
        assert websocket_protocol.protocol_class(Renamed) == "websockets-sansio"
    (record,) = caplog.records
    assert set(record.__dict__["fields"]["changed"]) >= {
        *("handle_events", "queue.put_nowait", "queue.get", "queue.append"),
        *("request, set and not read", "read_paused"),
    }


# ---- on real sockets


async def test_messages_come_to_the_application_whole_and_in_order() -> None:
    long = "x" * 100_000
    async with serving() as server, server.socket() as client:
        client.send(frame(TEXT, b"one") + frame(TEXT, b"t", fin=False) + frame(CONT, b"wo"))
        client.send(frame(TEXT, long.encode()) + frame(BINARY, b"\xff"))
        await waiting.eventually(lambda: len(server.app.messages) == 4, "four messages came")
        assert server.app.messages == ["one", "two", long, b"\xff"]
        client.send(frame(CLOSE, (1000).to_bytes(2, "big")))
        assert await client.close_code() == 1000


async def test_what_the_application_does_not_take_waits_as_bytes() -> None:
    """All messages of one read were once decoded and queued: 43,000 of the shortest."""
    async with serving() as server, server.socket() as client:
        server.app.taking.clear()
        client.send(frame(TEXT, b"x"))
        await waiting.eventually(lambda: len(server.app.messages) == 1, "the first is taken")
        client.send(frame(TEXT, b"y" * 600) * 300)
        (protocol,) = connections()
        await waiting.eventually(lambda: protocol.held, "the rest waits")
        assert protocol.queue.qsize() <= 2
        server.app.taking.set()
        await waiting.eventually(lambda: len(server.app.messages) == 301, "all are taken")


@cases.each(
    ("sent", "repeated"),
    [
        (frame(PING), websocket_protocol.MAX_CONTROLS + 1),
        (frame(PONG), websocket_protocol.MAX_CONTROLS + 1),
        (frame(TEXT), 3 * websocket_protocol.MAX_FRAMES),
        (frame(TEXT, fin=False), 2),
        (frame(CONT, fin=False), websocket_protocol.MAX_FRAGMENTS + 1),
    ],
    ids=["pings", "pongs", "empty messages", "two beginnings", "empty fragments"],
)
async def test_too_many_frames_are_closed(sent: bytes, repeated: int) -> None:
    async with serving() as server, server.socket() as client:
        if sent[0] == CONT:
            client.send(frame(TEXT, b"a", fin=False))
        client.send(sent * repeated)
        code = await client.close_code()
        assert code == (1002 if repeated == 2 else 1008)


async def test_a_message_that_does_not_end_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "MESSAGE_S", 0.1)
    for part in (frame(TEXT, b"a", fin=False), frame(TEXT, b"a" * 200)[:100], frame(PING)[:3]):
        async with serving() as server, server.socket() as client:
            client.send(part)
            assert await client.close_code() == 1008


async def test_messages_that_end_may_go_on_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "MESSAGE_S", 0.3)
    whole = frame(TEXT, b"a" * 50)
    async with serving() as server, server.socket() as client:
        client.send(whole[:20])
        for sent in range(1, 11):
            client.send(whole[20:] + whole[:20])
            await came(server, sent)
            await asyncio.sleep(0.05)
        client.send(whole[20:] + frame(CLOSE, (1000).to_bytes(2, "big")))
        assert await client.close_code() == 1000


async def test_a_client_that_pings_and_does_not_read_is_not_read() -> None:
    """Its pongs were kept without a bound: 276 MB in 19 s."""
    async with serving() as server, server.socket() as client:
        (protocol,) = connections()
        protocol.pause_writing()
        client.send(frame(TEXT, b"x") * 3)
        await asyncio.sleep(0.1)
        assert not server.app.messages
        protocol.resume_writing()
        await waiting.eventually(lambda: len(server.app.messages) == 3, "it is read again")


async def test_frames_before_the_handshake_is_answered_wait_for_it() -> None:
    """They were parsed and answered before the handshake, as many as came."""
    async with serving() as server, server.client() as client:
        server.app.accepting.clear()
        client.send(HANDSHAKE.encode() + b"\r\n")
        await waiting.eventually(lambda: server.app.seen, "the application has the handshake")
        client.send(frame(PING, b"early") + frame(TEXT, b"one"))
        (protocol,) = connections()
        await waiting.eventually(lambda: protocol.held, "they wait")
        server.app.accepting.set()
        assert (await client.read(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert await client.read(b"early") == b"\x8a\x05early"
        await waiting.eventually(lambda: server.app.messages == ["one"], "the message came")


async def test_a_close_that_the_service_began_is_complete_when_the_client_answers() -> None:
    """Also when messages still wait to be parsed before the client's close frame."""
    async with serving() as server, server.socket() as client:
        server.app.closing = True
        client.send(frame(TEXT, b"y" * 600) * 100)
        await client.read((4000).to_bytes(2, "big"))
        client.send(frame(CLOSE, (4000).to_bytes(2, "big")))
        assert await client.rest() == b""


async def test_a_close_in_the_middle_of_a_message_gets_its_code_back() -> None:
    """The library takes it for a violation (1002)."""
    async with serving() as server, server.socket() as client:
        client.send(frame(TEXT, b"no end", fin=False) + frame(CLOSE, (4000).to_bytes(2, "big")))
        assert await client.close_code() == 4000
    assert not server.app.messages


async def test_a_flood_behind_a_close_ends_the_connection() -> None:
    async with serving() as server, server.socket() as client:
        server.app.closing = True
        client.send(frame(TEXT, b"y"))
        await client.read((4000).to_bytes(2, "big"))
        client.send(frame(TEXT) * 3 * websocket_protocol.MAX_FRAMES)
        await client.rest()


async def test_bytes_kept_for_an_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "KEPT_BYTES_PER_ADDRESS", 100_000)
    part = frame(TEXT, b"a" * 120_000)[:60_000]
    async with serving() as server, server.socket() as first, server.socket() as second:
        first.send(part)
        await waiting.eventually(
            lambda: any(kept > 50_000 for kept in server.bounds.kept.values()), "counted"
        )
        second.send(part)
        assert await second.close_code() == 1008


async def test_above_the_rate_of_an_address_nothing_more_of_its_sockets_is_read() -> None:
    buckets = token_buckets.TokenBuckets(rate=0.001, burst=1.0)
    async with (
        serving(frames=buckets) as server,
        server.socket() as first,
        server.socket() as second,
        server.socket("127.0.0.3") as other,
    ):
        for client, text in ((first, "a"), (second, "b")):
            client.send(frame(TEXT, text.encode()))
            await came(server, 1 + (client is second))
        second.send(frame(TEXT, b"c") + frame(PING))
        other.send(frame(TEXT, b"d"))
        await came(server, 3)
        assert server.app.messages == ["a", "b", "d"]


async def test_within_the_rate_of_its_address_a_socket_is_read_on() -> None:
    buckets = token_buckets.TokenBuckets(rate=20.0, burst=1.0)
    async with serving(frames=buckets) as server, server.socket() as client:
        for number in range(4):
            client.send(frame(TEXT, str(number).encode()))
            await came(server, number + 1)
        client.send(frame(PING, b"last"))
        assert await client.read(b"last") == b"\x8a\x04last"
        client.send(frame(TEXT, b"waits"))  # when the connection ends


async def test_a_flood_that_is_read_at_the_rate_of_its_address_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It went on for as long as its client liked, and others of the address waited behind it."""
    monkeypatch.setattr(websocket_protocol, "BACKLOG_S", 0.2)
    monkeypatch.setattr(websocket_protocol, "BACKLOG_FRAMES", 400)
    buckets = token_buckets.TokenBuckets(rate=700.0, burst=10.0)
    async with serving(frames=buckets) as server, server.socket() as client:
        client.send(frame(TEXT) * 50_000)
        assert await client.close_code() == 1008
    assert 400 < len(server.app.messages) < 50_000


async def test_few_frames_that_wait_for_long_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "BACKLOG_S", 0.0)
    async with serving() as server, server.socket() as client:
        server.app.taking.clear()
        client.send(frame(TEXT, b"y" * 600) * 300)
        await waiting.eventually(lambda: connections()[0].held, "they wait")
        server.app.taking.set()
        await came(server, 300)


async def test_floods_with_pauses_between_them_are_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_protocol, "BACKLOG_S", 0.0)
    monkeypatch.setattr(websocket_protocol, "BACKLOG_FRAMES", 400)
    monkeypatch.setattr(websocket_protocol, "PAUSE_S", 0.0)
    async with serving() as server, server.socket() as client:
        for sent in (300, 600, 900):
            client.send(frame(TEXT, b"y" * 600) * 300)
            await came(server, sent)


async def test_a_client_whose_pong_waits_to_be_read_is_not_taken_for_gone() -> None:
    """Frames of an address that sends too much wait, and its honest clients' pongs among them."""
    buckets = token_buckets.TokenBuckets(rate=2.0, burst=1.0)
    async with serving(frames=buckets) as server, server.socket() as client:
        (protocol,) = connections()
        protocol.ping_timeout = 0.1
        client.send(frame(TEXT, b"a") * 2)
        await came(server, 2)
        protocol.send_keepalive_ping()
        ping = await client.read(protocol.pending_ping_payload)
        client.send(frame(PONG, ping[-4:]))
        await waiting.eventually(lambda: protocol.held, "the pong waits")
        await waiting.eventually(lambda: not protocol.held, "it was read")
        assert protocol.pending_ping_payload is None
        assert not protocol.close_sent


async def test_a_client_that_does_not_answer_a_ping_is_gone() -> None:
    async with serving() as server, server.socket() as client:
        (protocol,) = connections()
        protocol.ping_timeout = 0.1
        protocol.send_keepalive_ping()
        assert await client.close_code() == 1011


async def test_text_that_is_no_utf_8_is_closed_without_a_trace_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, server.socket() as client:
        client.send(frame(TEXT, b"\xff\xfe"))
        assert await client.close_code() == 1007
    assert not [record for record in caplog.records if record.exc_info]


async def came(server: Server, count: int) -> None:
    await waiting.eventually(lambda: len(server.app.messages) >= count, f"{count} messages")


def connections() -> list[Any]:
    """All of this process that are open."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, websocket_protocol.Protocol) and not each.disconnected
    ]


async def test_a_refused_handshake_has_its_answer_and_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving() as server, server.client() as client:
        server.app.refusing = True
        client.send(HANDSHAKE.encode() + b"\r\n")
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert answer.endswith(b"\r\n\r\nnobody")
    assert caplog.records == []
