"""Many sockets of one client, each just below its own bounds on frames."""

from __future__ import annotations

import contextlib
import select
import time
from typing import Final

import httpx
import pytest

from tailrace.connections import websocket_protocol
from tests.attacks import raw, room
from tests.attacks.test_frames import opened, target
from tests.faults.stage import Service

EVERY_S: Final = 0.1
# So that no second, wherever it begins, has more than the bound.
PINGS: Final = websocket_protocol.MAX_CONTROLS // 11
MESSAGES: Final = websocket_protocol.MAX_FRAMES // 11
FLOODS: Final = {
    "pings": (raw.frame(raw.PING, b"p" * 10) * PINGS, "frames"),
    "messages of one byte": (raw.frame(raw.TEXT, b"{") * MESSAGES, "messages"),
}


def slowed(service: Service, reason: str) -> float:
    """How often the service has stopped reading a socket for this reason."""
    metrics = httpx.get(f"http://127.0.0.1:{service.admin_port}/metrics", timeout=10).text
    name = f'tailrace_clients_slowed_total{{reason="{reason}"}} '
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))


@target
@pytest.mark.parametrize("kind", FLOODS)
def test_many_sockets_below_their_bounds_are_slowed_down(
    deployment: room.Deployment, attack: room.Attacks, name: str, kind: str
) -> None:
    """They are read later and not closed: one address may stand for many people."""
    flood, reason = FLOODS[kind]
    count = room.amount(200, 20)
    before = slowed(deployment.services[name], reason)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(opened(deployment, name)) for _ in range(count)]
        poll = select.poll()
        for one in sockets:
            one.tcp.setblocking(False)
            poll.register(one.tcp, select.POLLIN)
        by_number = {one.tcp.fileno(): one.tcp for one in sockets}
        with attack(f"{kind} on {count} sockets, {name}", "slowed down; others unaffected") as row:
            end, sent, got = time.monotonic() + room.amount(8, 2), 0, 0
            while time.monotonic() < end:
                due = time.monotonic() + EVERY_S
                for one in sockets:
                    with contextlib.suppress(OSError):
                        sent += one.tcp.send(flood)
                while (left := due - time.monotonic()) > 0:
                    for number, _ in poll.poll(1000 * left):
                        with contextlib.suppress(OSError):
                            got += len(by_number[number].recv(65_536))
            row.note = f"{sent / 1e6:.2f} MB sent, {got / 1e6:.2f} MB got"
            assert slowed(deployment.services[name], reason) > before
