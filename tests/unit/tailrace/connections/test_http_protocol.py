"""What a client can have before it is known: on real sockets, with short deadlines."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tailrace.connections import caps, http_protocol, websocket_protocol
from tests.support import cases, waiting
from tests.unit.tailrace.connections.serving import GET, HANDSHAKE, serving


async def test_a_request_is_answered_and_the_connection_is_kept() -> None:
    async with serving() as server, server.client() as client:
        for _ in range(3):
            client.send(GET)
            assert b"200 OK" in await client.read(b"127.0.0.2")
        assert server.bounds.open == 1


@cases.each(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 8_000,
        b"GET /" + b"a" * 40_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 8_000 + b"\r\n",
    ],
    ids=["a header without an end", "many headers", "a long path", "complete"],
)
async def test_a_head_above_the_bound_is_refused_with_431(head: bytes) -> None:
    async with serving() as server, server.client() as client:
        client.send(head)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
        assert not server.app.seen


async def test_a_head_of_half_the_bound_passes_also_behind_another_request() -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nx: " + b"a" * 15_000 + b"\r\n\r\n"
    async with serving() as server, server.client() as client:
        client.send(GET + head + GET)
        for _ in range(3):
            assert b"200 OK" in await client.read(b"127.0.0.2")


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHo", b"HTTP/1.1 408 "),
        (HANDSHAKE.encode(), b"HTTP/1.1 408 "),
        (b"POST / HTTP/1.1\r\nHost: x\r\ncontent-length: 10\r\n\r\n1", b"HTTP/1.1 200 "),
    ],
    ids=["silent", "half a head", "half a handshake", "half a body"],
)
async def test_what_does_not_come_in_time_is_closed(
    sent: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    monkeypatch.setattr(http_protocol, "BODY_S", 0.2)
    async with serving() as server, server.client() as client:
        client.send(sent)
        assert (await client.rest()).startswith(answer)


async def test_a_second_head_that_does_not_come_is_closed_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_protocol, "HANDSHAKE_S", 0.1)
    monkeypatch.setattr(http_protocol, "HEAD_S", 0.2)
    async with serving() as server, server.client() as client:
        client.send(GET)
        assert b"200 OK" in await client.read(b"127.0.0.2")
        client.send(GET[:10])
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


@cases.each(
    "request_bytes", [b"\x16\x03\x01", b"GET\r\n\r\n", b"NO SUCH\r\n\r\n"], ids=["tls", "get", "no"]
)
async def test_what_is_no_http_is_answered_with_400_in_the_api_s_shape(
    request_bytes: bytes,
) -> None:
    async with serving() as server, server.client() as client:
        client.send(request_bytes)
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"code": "invalid_http"' in answer


@cases.each(
    ("more", "status"),
    [
        ("x: y\r\n" * 200, b"400"),
        (f"x: {'y' * 9_000}\r\n", b"400"),
        ("Sec-WebSocket-Key: again\r\n", b"400"),
        ("Content-Length: 3\r\n", b"400"),
    ],
    ids=["200 headers", "a header of 9 KB", "two keys", "a body"],
)
async def test_a_malformed_handshake_gets_an_answer(more: str, status: bytes) -> None:
    async with serving() as server, server.client() as client:
        client.send(f"{HANDSHAKE}{more}\r\n".encode())
        assert (await client.rest()).startswith(b"HTTP/1.1 " + status)


OFFER = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
SIZED = "Content-Length: 11\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
BODY = {SIZED: b"hello world", CHUNKED: b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"}


@pytest.mark.parametrize("pieces", ["at once", "byte by byte", "head, then body"])
@pytest.mark.parametrize("form", [SIZED, CHUNKED], ids=["sized", "chunked"])
@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        "Connection: keep-alive\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0\r\n",
        "Upgrade: websocket\r\nConnection: upgrade\r\n",
        "Upgrade: h2c, websocket\r\nConnection: upgrade\r\n",
        "Upgrade: h2c\r\nConnection: close, upgrade\r\n",
    ],
    ids=["h2c", "TLS", "a WebSocket by POST", "one of two", "and close"],
)
async def test_an_offered_upgrade_is_ignored_and_the_body_served(
    offer: str, form: str, pieces: str
) -> None:
    head = f"POST /echo?y=%20 HTTP/1.1\r\nHost: x\r\n{offer}{form}".encode()
    sent = head + BODY[form]
    async with serving() as server, server.client() as client:
        if pieces == "byte by byte":
            parts = [sent[at : at + 1] for at in range(len(sent))]
        else:
            parts = [sent] if pieces == "at once" else [head, BODY[form]]
        for part in parts:
            client.send(part)
            await client.writer.drain()
        assert (await client.read(b"hello world")).startswith(b"HTTP/1.1 200 ")
        if "close" in offer:
            assert not await client.rest()
            return
        client.send(GET)  # the connection goes on
        assert b"200 OK" in await client.read(b"127.0.0.2")
        assert len(server.app.seen) == 2


async def test_requests_behind_an_offered_upgrade_are_served_too() -> None:
    with_offer = f"GET / HTTP/1.1\r\nHost: x\r\n{OFFER}\r\n".encode()
    async with serving() as server, server.client() as client:
        client.send(with_offer + with_offer + GET)
        for _ in range(3):
            assert b"200 OK" in await client.read(b"127.0.0.2")


async def test_a_tunnel_is_refused() -> None:
    async with serving() as server, server.client() as client:
        client.send(b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 405 ")


async def test_a_handshake_is_one_with_two_connection_headers() -> None:
    async with serving() as server, server.client() as client:
        client.send(f"{HANDSHAKE}Connection: keep-alive\r\n\r\n".encode())
        assert b" 101 " in await client.read(b"\r\n\r\n")


@pytest.mark.parametrize("length", ["0", "00"])
async def test_a_handshake_may_say_that_it_has_no_body(length: str) -> None:
    """Java 17's client always says so."""
    async with serving() as server, server.client() as client:
        client.send(f"{HANDSHAKE}Content-Length: {length}\r\n\r\n".encode())
        assert b" 101 " in await client.read(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ("", b"has the header 'host'"),
        ("Host: x\r\nHost: x\r\n", b"'host' is there more than once"),
        (
            "Host: x\r\nAuthorization: Bearer a\r\nauthorization: Bearer b\r\n",
            b"'authorization' is there more than once",
        ),
        ("Host: x\r\nOrigin: a\r\nOrigin: b\r\n", b"'origin' is there more than once"),
        (
            "Host: x\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n",
            b"'idempotency-key' is there more than once",
        ),
    ],
    ids=["no host", "two hosts", "two credentials", "two origins", "two keys"],
)
@pytest.mark.parametrize("offer", ["", OFFER], ids=["plain", "with an offer"])
async def test_a_header_that_must_be_there_once(headers: str, message: bytes, offer: str) -> None:
    async with serving() as server, server.client() as client:
        client.send(f"GET / HTTP/1.1\r\n{headers}{offer}\r\n".encode())
        answer = await client.rest()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert message in answer
        assert not server.app.seen


async def test_a_handshake_has_one_host_too() -> None:
    async with serving() as server, server.client() as client:
        client.send(f"{HANDSHAKE}Host: y\r\n\r\n".encode())
        assert (await client.rest()).startswith(b"HTTP/1.1 400 ")
        assert not server.app.seen


async def test_http_1_0_needs_no_host() -> None:
    async with serving() as server, server.client() as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200 OK" in await client.rest()


@cases.each("method", ["GET", "HEAD"])
async def test_no_client_of_http_1_0_gets_chunks(method: str) -> None:
    """uvicorn sends them to everyone; to such a client they are text of the answer."""
    async with serving() as server, server.client() as client:
        client.send(f"{method} /stream HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await client.rest()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert body == (b"one,two" if method == "GET" else b"")
    async with serving() as server, server.client() as client:
        client.send(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"transfer-encoding: chunked" in await client.read(b"0\r\n\r\n")


@pytest.mark.parametrize("requests", [1, 3])
async def test_a_half_closed_client_gets_its_answers(requests: int) -> None:
    async with serving() as server, server.client() as client:
        server.app.answering.clear()
        client.send(GET * requests)
        client.writer.write_eof()
        await waiting.eventually(lambda: len(server.app.seen) == 1, "the first one is asked")
        await asyncio.sleep(0.05)
        server.app.answering.set()
        assert (await client.rest()).count(b"200 OK") == requests
        assert len(server.app.seen) == requests


async def test_a_half_closed_client_does_not_get_a_late_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most of those that close have left. What waits for their answer is told."""
    monkeypatch.setattr(http_protocol, "HALF_CLOSED_S", 0.1)
    async with serving() as server, server.client() as client:
        server.app.answering.clear()
        client.send(GET)
        client.writer.write_eof()
        assert not await client.rest()
        server.app.answering.set()


@cases.each(
    "sent",
    [b"", GET[:20], b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12"],
    ids=["nothing", "half a head", "half a body"],
)
async def test_a_half_closed_client_that_said_no_whole_request_is_closed(sent: bytes) -> None:
    async with serving() as server, server.client() as client:
        client.send(sent)
        client.writer.write_eof()
        assert not await client.rest()


async def test_a_handshake_that_the_application_does_not_answer_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket_protocol, "HANDSHAKE_S", 0.1)
    async with serving() as server, server.client() as client:
        server.app.accepting.clear()
        client.send(HANDSHAKE.encode() + b"\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        server.app.accepting.set()


async def test_too_many_connections_of_one_address_are_refused_and_another_address_is_served() -> (
    None
):
    async with serving(per_address=2) as server:
        async with server.client() as one, server.socket(), server.client() as third:
            one.send(GET)
            await one.read(b"127.0.0.2")
            assert (await third.rest()).startswith(b"HTTP/1.1 429 ")
            async with server.client("127.0.0.3") as other:
                other.send(GET)
                assert b"200 OK" in await other.read(b"127.0.0.3")
        await waiting.eventually(lambda: server.bounds.open == 0, "places are given back")
        async with server.client() as again:
            again.send(GET)
            assert b"200 OK" in await again.read(b"127.0.0.2")


async def test_too_many_connections_of_all_are_refused_with_503() -> None:
    async with serving(total=1) as server, server.socket(), server.client("127.0.0.3") as second:
        assert (await second.rest()).startswith(b"HTTP/1.1 503 ")


async def test_bytes_kept_for_an_address_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "KEPT_BYTES_PER_ADDRESS", 20_000)
    async with serving() as server, server.client() as first, server.client() as second:
        first.send(GET[:-2] + b"x: " + b"a" * 15_000)
        await waiting.eventually(lambda: server.bounds.kept, "the head is counted")
        second.send(GET[:-2] + b"x: " + b"a" * 15_000)
        assert (await second.rest()).startswith(b"HTTP/1.1 429 ")
        first.send(b"\r\n\r\n")
        assert b"200 OK" in await first.read(b"127.0.0.2")


async def test_behind_a_trusted_proxy_the_client_s_address_counts() -> None:
    proxies = caps.Proxies([ipaddress.ip_network("127.0.0.2")])

    def asked(address: str) -> bytes:
        return GET[:-2] + f"X-Forwarded-For: 6.6.6.6, {address}\r\n\r\n".encode()

    async with (
        serving(per_address=1, proxies=proxies) as server,
        server.client() as one,
        server.client() as two,
        server.client() as three,
    ):
        one.send(asked("9.9.9.1"))
        assert b"200 OK" in await one.read(b"9.9.9.1")
        two.send(asked("9.9.9.2"))
        assert b"200 OK" in await two.read(b"9.9.9.2")
        three.send(asked("9.9.9.1"))
        assert (await three.rest()).startswith(b"HTTP/1.1 429 ")
        two.send(asked("9.9.9.3"))
        assert b"200 OK" in await two.read(b"9.9.9.3")
        assert server.app.seen == ["9.9.9.1", "9.9.9.2", "9.9.9.3"]


async def test_nobody_else_is_believed_about_an_address() -> None:
    async with serving() as server, server.client() as client:
        client.send(GET[:-2] + b"X-Forwarded-For: 9.9.9.9\r\n\r\n")
        assert b"200 OK" in await client.read(b"127.0.0.2")


async def test_pipelined_requests_are_bounded() -> None:
    async with serving() as server, server.client() as client:
        client.send(GET * 1_000)
        await client.rest()
        assert len(server.app.seen) <= http_protocol.MAX_PIPELINED + 1


def test_the_installed_uvicorn_has_all_that_the_class_relies_on() -> None:
    assert http_protocol.missing() == []
    made = http_protocol.over(caps.Caps(1, 1))
    assert issubclass(made, http_protocol.HttpProtocol)


class Renamed(HttpToolsProtocol):
    """A uvicorn that parses elsewhere."""


def test_with_a_uvicorn_that_changed_its_own_class_serves_and_one_line_says_what_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", "tailrace"):
        assert http_protocol.over(caps.Caps(1, 1), Renamed) == "httptools"
    (record,) = caplog.records
    assert "the parser" in record.__dict__["fields"]["changed"]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_a_head_goes_out_with_what_follows_in_the_same_turn() -> None:
    wire = Wire()
    answer = http_protocol.JoinedHead(wire, asyncio.get_running_loop())  # type: ignore[arg-type]
    answer.write(b"head ")
    answer.write(b"first ")
    answer.write(b"second")
    await asyncio.sleep(0)
    answer.write(b"later")
    assert wire.writes == [b"head first ", b"second", b"later"]


async def test_a_head_that_nothing_follows_goes_out_in_the_next_turn_or_with_the_close() -> None:
    wire, other = Wire(), Wire()
    loop = asyncio.get_running_loop()
    http_protocol.JoinedHead(wire, loop).write(b"head")  # type: ignore[arg-type]
    closed = http_protocol.JoinedHead(other, loop)  # type: ignore[arg-type]
    closed.write(b"head")
    closed.close()
    assert (wire.writes, other.writes, closed.is_closing()) == ([], [b"head"], True)
    await asyncio.sleep(0)
    assert (wire.writes, other.writes) == ([b"head"], [b"head"])


async def test_the_head_of_a_connection_that_was_cut_meanwhile_is_dropped() -> None:
    wire = Wire()
    http_protocol.JoinedHead(wire, asyncio.get_running_loop()).write(b"head")  # type: ignore[arg-type]
    wire.close()
    await asyncio.sleep(0)
    assert wire.writes == []


async def test_the_server_writes_a_head_and_its_body_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined_head = http_protocol.JoinedHead
    writes: list[bytes] = []

    class Counted(Wire):
        def __init__(self, transport: Any) -> None:
            super().__init__()
            self.transport = transport

        def write(self, data: bytes) -> None:
            writes.append(data)
            self.transport.write(data)

    monkeypatch.setattr(
        http_protocol,
        "JoinedHead",
        lambda transport, loop: joined_head(Counted(transport), loop),  # type: ignore[arg-type]
    )
    async with serving() as server, server.client() as client:
        client.send(GET)
        assert b"200 OK" in await client.read(b"127.0.0.2")
    (written,) = writes
    assert written.startswith(b"HTTP/1.1 200 ")
    assert written.endswith(b"127.0.0.2")
