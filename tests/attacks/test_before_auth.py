"""Attacks by clients that are not authenticated, and by clients that do not read: what a head, a
handshake, a connection or a refused credential can cost, and what a foreign origin or host gets."""

from __future__ import annotations

import contextlib
import json
import socket

import httpx
import pytest

from tailrace.connections import http_protocol
from tests.attacks import raw, room
from tests.support import waiting

TARGETS = ("gateway-1", "push-1")
PATHS = {"gateway-1": "/v1/responses", "push-1": "/v1/watch"}
# What a client waits for a deadline of the service to pass.
LATE_S = http_protocol.HEAD_S + 10.0

target = pytest.mark.parametrize("name", TARGETS)


def port_of(deployment: room.Deployment, name: str) -> int:
    return deployment.services[name].port


def all_closed(socks: list[socket.socket]) -> None:
    """Wait until the service has closed all of them."""
    left = list(socks)

    def none_left() -> bool:
        left[:] = raw.still_open(left)
        return not left

    waiting.eventually_blocking(
        none_left, lambda: f"{len(left)} of {len(socks)} closed", within_s=LATE_S, every_s=0.3
    )


@target
def test_a_head_without_an_end_is_cut(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    with (
        attack(f"head without an end, {name}", "431 or cut at 32 KiB; memory flat"),
        raw.connect(port_of(deployment, name)) as tcp,
    ):
        tcp.sendall(b"GET / HTTP/1.1\r\n")
        lines = b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(1000))
        taken = raw.flood(tcp, lines, bytes_at_most=room.amount(252, 16) * 10**6, seconds=10)
        assert raw.is_closed(tcp, within_s=LATE_S)
        # What the kernel's buffers take counts too.
        assert taken < 10**7


@target
def test_many_heads_that_stop_below_the_bound_are_closed_in_time(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    count = room.amount(1500, 200)
    head = b"GET / HTTP/1.1\r\nx: " + b"a" * 14_000
    with (
        attack(f"{count} heads of 14 KB, {name}", "closed within 10 s; memory bounded"),
        raw.connections(port_of(deployment, name), count) as socks,
    ):
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.sendall(head)
        all_closed(socks)


@target
@pytest.mark.parametrize("kind", ["silent", "half a head", "half a handshake", "dripping"])
def test_connections_that_never_ask_are_closed(
    deployment: room.Deployment, attack: room.Attacks, name: str, kind: str
) -> None:
    """They were open after 150 s."""
    count = 1 if kind == "dripping" else room.amount(2000, 100)
    first = {
        "silent": b"",
        "half a head": b"GET / HTTP/1.1\r\nHost: x\r\n",
        "half a handshake": raw.handshake(PATHS[name], {})[:-2],
        "dripping": b"",
    }[kind]
    with (
        attack(f"{count} connections, {kind}, {name}", "closed after 10 s, a handshake after 5 s"),
        raw.connections(port_of(deployment, name), count) as socks,
    ):
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.sendall(first)
        if kind == "dripping":
            assert not raw.drip(socks[0], b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20, every_s=0.3)
        all_closed(socks)


@target
@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        ("200 headers", {f"x-{n}": "y" for n in range(200)}),
        ("a header of 9 KB", {"x": "y" * 9000}),
        ("no key", {"Sec-WebSocket-Key": ""}),
        ("version 7", {"Sec-WebSocket-Version": "7"}),
        ("a body", {"Content-Length": "5"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_handshake_gets_an_answer_and_is_closed(
    deployment: room.Deployment, attack: room.Attacks, name: str, kind: str, headers: dict[str, str]
) -> None:
    """Handshakes that the library refuses were left open without a word."""
    with attack(f"handshake with {kind}, {name}", "4xx, closed"):
        for _ in range(room.amount(200, 5)):
            with raw.connect(port_of(deployment, name)) as tcp:
                tcp.sendall(raw.handshake(PATHS[name], headers))
                assert 400 <= raw.status(raw.read(tcp)) < 500


@target
def test_what_is_no_http_is_refused(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    with attack(f"no HTTP, {name}", "400, closed"):
        for garbage in (b"\x16\x03\x01\x02\x00\x01", b"\x00" * 64, b"NO SUCH THING\r\n\r\n"):
            for _ in range(room.amount(200, 5)):
                with raw.connect(port_of(deployment, name)) as tcp:
                    tcp.sendall(garbage)
                    assert raw.status(raw.read(tcp)) == 400


@target
def test_requests_without_a_pause_between_them_are_cut(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """Every pipelined request was kept whole, before the first was answered."""
    asked = raw.request("GET", "/v1/responses/resp_1", {})
    with (
        attack(f"pipelined requests, {name}", "cut behind 16 that wait; memory flat"),
        raw.connect(port_of(deployment, name)) as tcp,
    ):
        raw.flood(tcp, asked * 1000, bytes_at_most=room.amount(200, 5) * 10**6, seconds=10)
        assert raw.is_closed(tcp, within_s=LATE_S)


@target
def test_connections_of_one_address_are_capped_and_others_get_in(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """The bystander opens a connection for each of its questions."""
    count = room.amount(4000, 2100)
    with (
        attack(f"{count} connections of one address, {name}", "2,048 are held, others get in"),
        raw.connections(port_of(deployment, name), count) as socks,
    ):
        waiting.eventually_blocking(
            lambda: deployment.services[name].connections <= 2048 + 64,
            "the others are closed",
            within_s=10,
        )
        with raw.connect(port_of(deployment, name), source="127.0.0.3") as other:
            other.sendall(raw.request("GET", "/health", {"Connection": "close"}))
            assert raw.status(raw.read(other)) == 200
        assert socks


@target
def test_a_foreign_origin_is_refused_before_the_socket_is_open(
    deployment: room.Deployment, attack: room.Attacks, name: str
) -> None:
    """A page of another site must not use a user's socket."""
    origins = [
        "https://evil.example",
        "null",
        "http://page.test.evil.example",
        "http://page.test:81",
        "HTTP://PAGE.TEST.",
        "",
    ]
    with attack(f"foreign origins, {name}", "403 before accept"):
        for origin in origins:
            with raw.connect(port_of(deployment, name)) as tcp:
                headers = {**deployment.headers("mallory"), "Origin": origin}
                tcp.sendall(raw.handshake(PATHS[name], headers))
                assert raw.status(raw.read(tcp)) == 403, origin


@target
@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1@evil.example", "a b", "x" * 4000, "[::1", "", "\xff"],
    ids=repr,
)
def test_a_host_header_decides_nothing(
    deployment: room.Deployment, attack: room.Attacks, name: str, host: str
) -> None:
    """Nothing is allowed or sent elsewhere because of a name that the client chose."""
    with attack(f"Host {host[:12]!r}, {name}", "no 5xx, no redirect, no access"):
        for path, statuses in (
            ("/v1/responses/resp_1", {400, 401}),
            ("/v1/responses/resp_1/", {400, 401, 404, 405}),
            ("/dev/credential", {400, 404}),
        ):
            with raw.connect(port_of(deployment, name)) as tcp:
                tcp.sendall(raw.request("GET", path, {"Host": host, "Connection": "close"}))
                answer = raw.read(tcp)
                assert raw.status(answer) in statuses, answer[:300]
                assert b"location:" not in answer.lower()


def test_the_admin_port_has_the_same_bounds(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    port = deployment.gateway(1).admin_port
    with attack("the admin port: endless head, silence, too many", "431; closed; 64 held"):
        with raw.connect(port) as tcp:
            tcp.sendall(b"GET / HTTP/1.1\r\n")
            raw.flood(tcp, b"x: y\r\n" * 1000, bytes_at_most=20 * 10**6, seconds=5)
            assert raw.is_closed(tcp, within_s=LATE_S)
        with raw.connections(port, 200) as socks:
            waiting.eventually_blocking(
                lambda: len(raw.still_open(socks)) <= 64, "64 are held", within_s=10
            )
            all_closed(socks)


def test_refused_credentials_have_a_rate(deployment: room.Deployment, attack: room.Attacks) -> None:
    """No signature is checked once an address has had too many refused."""
    forged = deployment.token("mallory")[:-8] + "AAAAAAAA"
    asked = raw.request("GET", "/v1/models", {"Authorization": f"Bearer {forged}"})
    good = raw.request("GET", "/v1/models", deployment.headers("mallory"))

    def ask(tcp: socket.socket, what: bytes) -> bytes:
        tcp.sendall(what)
        return raw.read(tcp, until=b"]}" if what is good else b"}}")

    with (
        attack("forged credentials", "401, soon 429 with Retry-After; a known one is served"),
        raw.connect(deployment.gateway(1).port, source="127.0.0.4") as tcp,
    ):
        assert raw.status(ask(tcp, good)) == 200
        answers = [ask(tcp, asked) for _ in range(room.amount(20_000, 1_000))]
        assert {raw.status(answer) for answer in answers} == {401, 429}
        refused = [answer for answer in answers if raw.status(answer) == 429]
        assert all(b"retry-after: " in answer.lower() for answer in refused)
        assert raw.status(ask(tcp, good)) == 200


def test_readers_that_do_not_read_are_cut(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    """What they do not take is not kept for them. Each watches one long answer again and again."""
    rid = long_answer(deployment, "mallory")
    watch = raw.frame(raw.TEXT, json.dumps({"type": "watch", "response_id": rid}).encode())
    with (
        attack("readers that do not read", "cut as slow; others unaffected"),
        contextlib.ExitStack() as stack,
    ):
        sockets = [
            stack.enter_context(
                raw.opened(
                    deployment.push(1).port,
                    "/v1/watch",
                    deployment.headers("mallory"),
                    receive_bytes=4096,
                )
            )
            for _ in range(room.amount(10, 2))
        ]

        def all_cut() -> bool:
            for one in sockets:
                with contextlib.suppress(OSError):
                    one.tcp.settimeout(0.01)
                    one.tcp.sendall(watch)
            return deployment.push(1).metric("tailrace_outbox_closes_total") >= cut + len(sockets)

        cut = deployment.push(1).metric("tailrace_outbox_closes_total")
        waiting.eventually_blocking(all_cut, "they are cut", within_s=90, every_s=0.05)


def long_answer(deployment: room.Deployment, user: str) -> str:
    """Id of an answer of 20,000 tokens that has ended."""
    metadata = {"script_tokens": "20000", "script_pace_ms": "0"}
    body = {"model": "scripted", "input": "x", "background": True, "metadata": metadata}
    with httpx.Client(
        base_url=deployment.gateway(1).url, headers=deployment.headers(user), timeout=30
    ) as client:
        created = client.post("/v1/responses", json={**body, "max_output_tokens": 20_000})
        created.raise_for_status()
        rid = str(created.json()["id"])

        def status() -> str:
            return str(client.get(f"/v1/responses/{rid}").json()["status"])

        waiting.eventually_blocking(
            lambda: status() in ("completed", "incomplete"),
            lambda: f"the long answer is there; it is {status()}",
            within_s=90,
            every_s=0.5,
        )
    return rid
