"""One user who asks for the same long answer again and again, on many sockets."""

from __future__ import annotations

import contextlib
import json
import select
import time

import httpx

from tests.attacks import raw, room
from tests.attacks.test_frames import opened
from tests.faults.stage import MODEL
from tests.support import waiting

TOKENS = 2000


def finished_answer(deployment: room.Deployment) -> str:
    """The id of an answer of TOKENS tokens."""
    base = deployment.gateway(1).url
    with httpx.Client(base_url=base, headers=deployment.headers("mallory"), timeout=30) as http:
        asked = {
            "model": MODEL,
            "input": "again",
            "background": True,
            "metadata": {"script_tokens": str(TOKENS), "script_pace_ms": "0"},
        }
        rid = str(http.post("/v1/responses", json=asked).raise_for_status().json()["id"])

        def done() -> bool:
            return bool(http.get(f"/v1/responses/{rid}").json()["status"] == "completed")

        waiting.eventually_blocking(done, "it is answered", within_s=60, every_s=0.5)
    return rid


def test_an_answer_that_one_user_reads_again_and_again_keeps_no_other_user_waiting(
    deployment: room.Deployment, attack: room.Attacks
) -> None:
    rid = finished_answer(deployment)
    again = raw.frame(raw.TEXT, json.dumps({"type": "watch", "response_id": rid}).encode())
    count = room.amount(100, 10)
    with contextlib.ExitStack() as stack:
        sockets = {}
        poll = select.poll()
        for _ in range(count):
            tcp = stack.enter_context(opened(deployment, "push-1")).tcp
            tcp.setblocking(False)
            poll.register(tcp, select.POLLIN)
            sockets[tcp.fileno()] = tcp
        with attack(f"one answer again on {count} sockets", "others unaffected") as row:
            end, got, asked = time.monotonic() + room.amount(8, 2), 0, 0
            for tcp in sockets.values():
                tcp.send(again)
            while time.monotonic() < end:
                for number, _ in poll.poll(100):
                    some = sockets[number].recv(1 << 20)
                    got += len(some)
                    if b'"watch.done"' in some:
                        asked += 1
                        sockets[number].send(again)
            row.note = f"{asked} answers, {got / 1e6:.0f} MB sent"
        assert asked
