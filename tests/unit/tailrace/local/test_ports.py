"""Free ports, claims on them, and who listens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.local import paths, ports


def test_who_listens_on_a_port_is_found() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not ports.port_is_free(port)
        assert ports.accepts(port)
        assert ports.listener(port) == os.getpid()
    assert ports.port_is_free(port)
    assert ports.listener(port) is None


def test_a_free_port_is_below_those_of_outgoing_connections_and_its_followers_are_free() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    first = ports.free_port(following=4)
    assert first + 4 < low
    assert all(ports.port_is_free(p) for p in range(first, first + 5))


def test_a_block_of_ports_with_one_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    # More than one candidate: a run of the same test beside this one may have claimed the first.
    candidates = range(25_010, 26_000, 10)
    drawn = iter([25_000, 25_002, *candidates])
    monkeypatch.setattr("random.choice", lambda _: next(drawn))
    monkeypatch.setattr(ports, "port_is_free", lambda port, host="": port != 25_003)
    assert ports.free_port({25_000}, following=2) in candidates


def test_a_port_is_given_to_one_process_until_its_server_must_have_bound_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two deployments that start together both look before either binds."""
    first = ports.free_port(following=3)
    draw = (
        f"choice, drawn = random.choice, iter([{first}, {first + 3}, {first - 1}]); "
        "random.choice = lambda span: next(drawn, None) or choice(span)"
    )
    ask = (
        f"import random; from tailrace.local import ports; {draw}; "
        "print(ports.free_port(following=1))"
    )
    other = int(
        subprocess.run(
            [sys.executable, "-c", ask], capture_output=True, text=True, check=True, timeout=30
        ).stdout
    )
    assert {other, other + 1}.isdisjoint(range(first, first + 4))
    monkeypatch.setattr(ports, "CLAIM_S", 0.0)
    unused = ports.free_port()
    monkeypatch.setattr("random.choice", lambda _: unused)
    assert ports.free_port() == unused, "the port is still free"


def test_a_chosen_port_is_claimed_too_until_its_server_has_bound_it() -> None:
    """Symptom: two deployments found 6379 free at once, and one went on with the other's Redis."""
    port = ports.free_port()
    code = f"from tailrace.local import ports; print(ports.claim({port}))"
    assert ports.claim(port), "it is this process's already"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=paths.ROOT
    )
    assert other.stdout == "False\n"
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not ports.claim(port), "another server has it"


def test_a_process_that_ends_with_claims_says_nothing_of_them() -> None:
    """Symptom: Python warned of an unclosed socket for each claim, at the end of every run of
    the tests. A claim is meant to last until the process ends."""
    code = "from tailrace.local import ports; ports.free_port(following=2)"
    ended = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=paths.ROOT,
    )
    assert ended.stderr == ""
