"""The room itself: what it says of an attack that does nothing, and of one that does."""

from __future__ import annotations

import time

from tests.attacks import raw, room


def test_an_attack_that_does_nothing_is_measured(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    with attack("none", "nothing changes") as row:
        deployment.wait_for_answers(time.monotonic())
    assert row.passed
    assert set(row.usage) == set(deployment.services)
    for way in room.WAYS:
        assert row.during[way].count >= room.QUESTIONS
        assert not row.during[way].failed


def test_clients_by_hand_are_understood(deployment: room.Deployment) -> None:
    port = deployment.push(1).port
    with raw.connect(port) as tcp:
        tcp.sendall(raw.request("GET", "/health", {"Connection": "close"}))
        assert raw.status(raw.read(tcp)) == 200
    with raw.opened(port, "/v1/watch", deployment.headers("mallory")) as socket:
        socket.send(raw.PING, b"one")
        assert socket.next_frame() == (raw.PONG, b"one")
        socket.send(raw.CLOSE, (1000).to_bytes(2, "big"))
        assert socket.close_code() == 1000
