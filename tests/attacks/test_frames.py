"""Attacks on open sockets by their frames, on both endpoints: fragments, control frames, tiny and
huge frames, compression that was not agreed on, violations of the protocol, tickets used twice."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import urllib.request
from concurrent import futures

import pytest

from tailrace.connections import websocket_protocol
from tests.attacks import raw, room
from tests.support import waiting

PATHS = {"gateway-1": "/v1/responses", "push-1": "/v1/watch"}
target = pytest.mark.parametrize("name", PATHS)


def opened(
    deployment: room.Deployment, name: str, user: str = "mallory", receive_bytes: int = 0
) -> contextlib.AbstractContextManager[raw.Socket]:
    return raw.opened(
        deployment.services[name].port,
        PATHS[name],
        deployment.headers(user),
        receive_bytes=receive_bytes,
    )


FLOODS = {
    "empty fragments": (
        raw.frame(raw.TEXT, b"a", fin=False),
        raw.frame(raw.CONTINUATION, fin=False),
    ),
    "pings": (b"", raw.frame(raw.PING)),
    "pings of 125 bytes": (b"", raw.frame(raw.PING, b"p" * 125)),
    "pongs": (b"", raw.frame(raw.PONG)),
    "empty messages": (b"", raw.frame(raw.TEXT)),
    "empty binary messages": (b"", raw.frame(raw.BINARY)),
    "messages of one byte": (b"", raw.frame(raw.TEXT, b"{")),
}


@target
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_small_frames_is_closed(
    deployment: room.Deployment, attack: room.Attacks, name: str, kind: str
) -> None:
    """7.6 MB of empty fragments once gave another user a first token after 19.9 s, and three
    million were never refused. Pings whose answers were not read grew the process by 276 MB."""
    first, repeated = FLOODS[kind]
    with (
        attack(f"{kind}, {name}", "closed with 1008 or for not reading; others unaffected"),
        opened(deployment, name) as client,
    ):
        client.tcp.sendall(first)
        size = room.amount(8, 1) * 10**6
        raw.flood(client.tcp, repeated * 4096, bytes_at_most=size, seconds=12)
        assert client.close_code(within_s=30) in (1006, 1008)


@target
def test_a_client_that_pings_without_reading_is_not_read(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """Below the bound of control frames, so that only what waits for it is bounded."""
    pings = raw.frame(raw.PING, b"p" * 125) * (websocket_protocol.MAX_CONTROLS // 2)
    with (
        attack(f"pings without reading, {name}", "memory flat"),
        opened(deployment, name, receive_bytes=4096) as client,
    ):
        end = time.monotonic() + room.amount(20, 3)
        while time.monotonic() < end and not client.closed_by_peer():
            with contextlib.suppress(OSError):
                client.tcp.sendall(pings)
            time.sleep(0.6)


@target
@pytest.mark.parametrize(
    ("kind", "sent", "code"),
    [
        ("64 KB of no JSON", raw.frame(raw.TEXT, b"a" * 65_000), 0),
        ("16 MB", raw.frame(raw.TEXT, b"a" * 16_000_000), 1009),
        ("a length of 2^63", b"\x81\xff" + (2**63 - 1).to_bytes(8, "big") + bytes(8), 1009),
        ("16 MB in fragments", raw.frame(raw.CONTINUATION, b"a" * 60_000, fin=False) * 200, 1009),
        ("text that is no UTF-8", raw.frame(raw.TEXT, b"\xff\xfe"), 1007),
        ("no mask", raw.frame(raw.TEXT, b"{}", masked=False), 1002),
        ("a reserved bit: compressed", raw.frame(raw.TEXT, b"{}", rsv=4), 1002),
        ("a reserved opcode", raw.frame(0x3, b""), 1002),
        ("a long ping", raw.frame(raw.PING, b"a" * 126), 1002),
        ("a ping in fragments", raw.frame(raw.PING, b"a", fin=False), 1002),
        ("a continuation of nothing", raw.frame(raw.CONTINUATION, b"a"), 1002),
        ("a close of one byte", raw.frame(raw.CLOSE, b"a"), 1002),
        ("a close with a forbidden code", raw.frame(raw.CLOSE, (1005).to_bytes(2, "big")), 1002),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_the_protocol_or_is_too_large_is_closed(
    deployment: room.Deployment,
    attack: room.Attacks,
    name: str,
    kind: str,
    sent: bytes,
    code: int,
) -> None:
    with (
        attack(f"{kind}, {name}", f"closed with {code}; memory flat" if code else "refused"),
        opened(deployment, name) as client,
    ):
        if sent[0] == raw.CONTINUATION:
            client.send(raw.TEXT, b"a", fin=False)
        with contextlib.suppress(OSError):
            client.tcp.sendall(sent)
        if code:
            # What was still on its way when the service closed may have reset the connection.
            assert client.close_code() in (code, 1006 if len(sent) > 100_000 else code)
        elif name == "push-1":
            assert client.close_code() in (1009, 1006)  # its messages are small
        else:
            found = client.next_frame()
            assert found is not None
            assert json.loads(found[1])["type"] == "error"


@target
def test_compression_is_not_agreed_on(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    asked = {
        **deployment.headers("mallory"),
        "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
    }
    with (
        attack(f"permessage-deflate, {name}", "not negotiated"),
        raw.connect(deployment.services[name].port) as tcp,
    ):
        tcp.sendall(raw.handshake(PATHS[name], asked))
        answer = raw.read(tcp, until=b"\r\n\r\n")
        assert raw.status(answer) == 101
        assert b"sec-websocket-extensions" not in answer.lower()


@target
def test_many_sockets_with_messages_that_do_not_end_keep_little(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """Each may hold a message of the largest size: 1,024 of them would be 128 MB."""
    part = (
        raw.frame(raw.TEXT, b"a" * 120_000)[:-1]
        if name == "gateway-1"
        else (raw.frame(raw.TEXT, b"a" * 16_000)[:-1])
    )
    with (
        attack(f"messages that do not end, {name}", "12 MiB for an address; 1008 after 30 s"),
        contextlib.ExitStack() as stack,
    ):
        sockets = [
            stack.enter_context(opened(deployment, name)) for _ in range(room.amount(1000, 250))
        ]
        for one in sockets:
            with contextlib.suppress(OSError):
                one.tcp.sendall(part)
        left = [one.tcp for one in sockets]

        def none_left() -> bool:
            left[:] = raw.still_open(left)
            return not left

        waiting.eventually_blocking(none_left, "all are closed", within_s=60, every_s=0.5)


@target
def test_sockets_of_one_user_are_capped(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """2,000 watch sockets of one user were accepted where 1,024 are documented."""
    count = room.amount(2000, 1100)
    accepted: list[socket.socket] = []
    asked = raw.handshake(PATHS[name], deployment.headers("hoarder"))
    with attack(f"{count} sockets of one user, {name}", "1,024 are accepted, then 429"):
        statuses = set()
        try:
            for number in range(count):
                tcp = raw.connect(deployment.services[name].port, source=f"127.0.1.{number % 8}")
                accepted.append(tcp)
                tcp.sendall(asked)
                statuses.add(status := raw.status(raw.read(tcp, until=b"\r\n\r\n")))
                if status != 101:
                    accepted.pop().close()
            assert statuses == {101, 429}
            assert len(accepted) == 1024
        finally:
            for tcp in accepted:
                tcp.close()


def test_a_ticket_is_good_for_one_socket_from_its_origin(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    def ticket() -> str:
        asked = urllib.request.Request(  # noqa: S310 - it is http
            f"{deployment.gateway(1).url}/v1/tickets",
            method="POST",
            headers=deployment.headers("alice"),
        )
        with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310
            return str(json.loads(answer.read())["ticket"])

    def used(value: str, **more: str) -> int:
        headers = {"Sec-WebSocket-Protocol": f"tailrace.v1, ticket.{value}", **more}
        with raw.connect(deployment.push(1).port) as tcp:
            tcp.sendall(raw.handshake("/v1/watch", headers))
            return raw.status(raw.read(tcp, until=b"\r\n\r\n"))

    with attack("one ticket, many handshakes", "exactly one wins"):
        one = ticket()
        with futures.ThreadPoolExecutor(8) as threads:
            statuses = list(threads.map(lambda _: used(one), range(8)))
        assert sorted(statuses) == [101] + 7 * [401]
        assert used(one) == 401
        assert used("0" * 32) == 401
