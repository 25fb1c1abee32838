"""A worker dies in the middle of an answer; every client that watches sees one text without a
seam."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tailrace.protocol.events import TERMINAL_TYPES
from tests.journey import conftest
from tests.journey.conftest import MODEL, Stack
from worker.engines import scripted

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Stack]:
    """Two real engines; sessions short enough that a death is noticed in seconds."""
    with conftest.running(tmp_path, "--workers", "2", engine="vllm") as started:
        yield started


class Watcher(threading.Thread):
    """Reads one response to its end over SSE, coming back by its position whenever the stream
    breaks."""

    def __init__(self, base: str, headers: dict[str, str], rid: str) -> None:
        super().__init__(daemon=True)
        self.base, self.headers, self.rid = base, headers, rid
        self.events: list[dict[str, Any]] = []
        self.error: BaseException | None = None
        self.breaks = 0

    def run(self) -> None:
        try:
            with httpx.Client(base_url=self.base, headers=self.headers, timeout=120.0) as client:
                while not (self.events and self.events[-1]["type"] in TERMINAL_TYPES):
                    self._once(client)
        except BaseException as error:
            self.error = error

    def _once(self, client: httpx.Client) -> None:
        query: dict[str, Any] = {"stream": "true"}
        if self.events:
            query["starting_after"] = self.events[-1]["sequence_number"]
        try:
            with client.stream("GET", f"/v1/responses/{self.rid}", params=query) as response:
                assert response.status_code == 200, response.read()
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self.events.append(json.loads(line[6:]))
        except httpx.TransportError:
            self.breaks += 1

    @property
    def text(self) -> str:
        return "".join(e["delta"] for e in self.events if e["type"] == "response.output_text.delta")


LONG_TOKENS = 250
NO_EOS = {
    "0": -100,
    "2": -100,
}  # of the small model: an answer runs to its last token, so that the kill is in its middle


def ask(
    stack: Stack, text: str, max_tokens: int, bias: dict[str, int] | None = None, **metadata: str
) -> str:
    with httpx.Client(base_url=stack.url, headers=stack.headers, timeout=60.0) as client:
        body = {
            "model": MODEL,
            "input": text,
            "background": True,
            "max_output_tokens": max_tokens,
            "temperature": 0,
            "metadata": metadata,
        }
        body |= {"logit_bias": bias} if bias else {}
        answer = client.post("/v1/responses", json=body)
        assert answer.status_code == 200, answer.text
        rid: str = answer.json()["id"]
        return rid


def owner(stack: Stack, rid: str) -> str:
    """Name of the worker that holds the response now, read from the log itself."""
    from tests.support import read_log

    claims = read_log.claims(stack, rid)
    return claims[-1].worker.split("/")[0] if claims else ""


def kill_owner(stack: Stack, rid: str, workers: Mapping[str, int]) -> None:
    """Kill the worker that holds the response. `workers`: the pid of each, which stand still
    meanwhile, so that the answer does not end before its owner is found."""
    pids = dict(workers)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        killed = pids.pop(owner(stack, rid))
        os.kill(killed, signal.SIGKILL)
    finally:
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)


def deltas(w: Watcher) -> int:
    return sum(e["type"] == "response.output_text.delta" for e in w.events)


def check(watchers: list[Watcher]) -> None:
    for w in watchers:
        w.join(180)
        assert w.error is None, w.error
        assert not w.is_alive()
        assert [e["sequence_number"] for e in w.events] == list(range(len(w.events)))
        assert w.events[-1]["response"]["output"][0]["content"][0]["text"] == w.text
    assert len({w.text for w in watchers}) == 1


@pytest.mark.engine
@pytest.mark.nightly
def test_a_real_engine_is_killed_in_mid_answer(two_workers: Stack) -> None:
    pids = {p["name"]: p["pid"] for p in two_workers.processes("worker")}
    rid = ask(
        two_workers,
        "Write a long story about a river and the people who live beside it.",
        LONG_TOKENS,
        NO_EOS,
    )
    bases = [two_workers.url, two_workers.push_url, two_workers.push_url]
    watchers = [Watcher(b, two_workers.headers, rid) for b in bases]
    for w in watchers:
        w.start()
    conftest.wait_for(lambda: deltas(watchers[0]) >= 20, "the answer streams", 120)
    victim = owner(two_workers, rid)
    family = [p.pid for p in psutil.Process(pids[victim]).children(recursive=True)]
    assert family, "vLLM runs its engine in processes of its own"
    before = deltas(watchers[0])
    os.kill(pids[victim], signal.SIGKILL)
    conftest.wait_for(
        lambda: not any(alive(p) for p in family), "the dead worker's engine processes are gone", 20
    )
    check(watchers)
    final = watchers[0].events[-1]
    assert final["type"] == "response.incomplete"
    assert deltas(watchers[0]) > before + 5, "the answer went on after the death"
    assert "�" not in watchers[0].text.removesuffix("�")  # the length may cut the last character
    assert final["response"]["usage"]["output_tokens"] == LONG_TOKENS
    from tests.support import read_log

    claims = read_log.claims(two_workers, rid)
    assert len({c.worker for c in claims}) == 2, "another worker took over"


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_scripted_text_is_exactly_the_text_without_a_fault(scripted_stack: Stack) -> None:
    """Greedy self-describing tokens: the final text equals what no fault would have given, so
    nothing was lost, doubled or mixed at the seam."""
    workers = {p["name"]: p["pid"] for p in scripted_stack.processes("worker")}
    rid = ask(scripted_stack, "takeover", 4000, script_tokens="1500", script_pace_ms="10")
    watchers = [
        Watcher(b, scripted_stack.headers, rid)
        for b in (scripted_stack.url, scripted_stack.push_url)
    ]
    for w in watchers:
        w.start()
    conftest.wait_for(lambda: deltas(watchers[0]) >= 20, "the answer streams", 30)
    kill_owner(scripted_stack, rid, workers)
    check(watchers)
    assert watchers[0].text == scripted.expected_text(
        [{"role": "user", "content": "takeover"}], 1500
    )
    assert watchers[0].events[-1]["response"]["usage"]["output_tokens"] == 1500


@pytest.mark.nightly
def test_a_push_instance_dies_and_its_watchers_go_on_elsewhere(scripted_stack: Stack) -> None:
    doomed, other = scripted_stack.processes("push")
    rid = ask(scripted_stack, "push dies", 4000, script_tokens="1500", script_pace_ms="10")
    w = Watcher(str(doomed["address"]), scripted_stack.headers, rid)
    w.start()
    conftest.wait_for(lambda: deltas(w) >= 10, "the answer streams", 30)
    w.base = str(other["address"])
    os.kill(doomed["pid"], signal.SIGKILL)
    rest = Watcher(str(other["address"]), scripted_stack.headers, rid)
    conftest.wait_for(lambda: w.breaks > 0, "the stream breaks", 20)
    rest.events = list(w.events)
    rest.start()
    check([rest])
    assert rest.text == scripted.expected_text([{"role": "user", "content": "push dies"}], 1500)


def test_nothing_is_left_of_the_logs_of_another_run(scripted_stack: Stack, tmp_path: Path) -> None:
    """An id of another log is said to be gone, not unknown and never silence."""
    from tailrace.protocol import ids

    foreign = ids.mint(ids.Address(b"\x01\x02\x03\x04", 0, 0), b"x" * ids.RANDOM_BYTES)
    answer = httpx.get(
        f"{scripted_stack.url}/v1/responses/{foreign}", headers=scripted_stack.headers, timeout=30.0
    )
    assert answer.status_code in (404, 410)
    assert answer.json()["error"]["code"] == "history_lost"
