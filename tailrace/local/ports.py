"""Ports of this machine: free ones, claimed ones, and who listens on one."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

FIRST_PORT = 20_000  # below every common range of outgoing connections, above the usual services
CLAIM_S = 60.0  # a server must have bound its port this long after the port was given out

# Ports given to this process: port -> (descriptor of the socket that claims it, end of the claim on
# the monotonic clock). The kernel closes what is left at the end of the process; a socket object
# would warn then that it was not closed.
_claims: dict[int, tuple[int, float]] = {}


def free_port(used: set[int] | None = None, following: int = 0) -> int:
    """Choose a free port whose `following` next ports are free too, none of them in `taken`.

    The port lies below the kernel's range for outgoing connections: a connection of any program
    may take a port of that range before the server binds it. All chosen ports are claimed, so that
    another process does not get them for CLAIM_S. Two deployments that start together would
    otherwise choose the same port, because a server binds its port only seconds later.
    """
    last = min(_first_outgoing_port(), 65_535) - following
    span = range(FIRST_PORT, last) if last - FIRST_PORT > 1000 else range(1024, 65_535 - following)
    while True:
        first = random.choice(span)
        block = range(first, first + following + 1)
        if (
            not set(block) & (used or set())
            and all(port_is_free(p) for p in block)
            and _claim(block)
        ):
            return first


def claim(port: int) -> bool:
    """Claim this one port. Returns False if it is in use or another process has claimed it."""
    return port_is_free(port) and (port in _claims or _claim(range(port, port + 1)))


def _claim(block: Sequence[int]) -> bool:
    """Claim all of these ports or none. A claim is an abstract socket name (unix(7)): the kernel
    removes it when the process ends."""
    now = time.monotonic()
    for port in [port for port, (_, until) in _claims.items() if until <= now]:
        os.close(_claims.pop(port)[0])
    with contextlib.ExitStack() as sockets:
        names = [sockets.enter_context(socket.socket(socket.AF_UNIX)) for _ in block]
        try:
            for port, name in zip(block, names, strict=True):
                name.bind(f"\0tailrace-port-{port}")
        except OSError:
            return False
        _claims.update(
            (port, (name.detach(), now + CLAIM_S)) for port, name in zip(block, names, strict=True)
        )
    return True


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # Linux's default


def port_is_free(port: int) -> bool:
    """Whether a server can bind this port now."""
    with socket.socket() as probe:
        # Servers set it too: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def accepts(port: int) -> bool:
    """Whether a server accepts connections on this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False


def listener(port: int) -> int | None:
    """Pid of the process that listens on this port; None if there is none, or if it belongs to
    another user."""
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            return int(connection.pid) if connection.pid else None
    return None
