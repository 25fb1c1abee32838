"""Every part of a real `tailrace up` is killed, in mid-answer: each comes back on its port, the
answer is complete, and `ps`, `doctor` and `down` tell what happened."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.cli import chat_client
from tailrace.local import parts, paths, ports, processes, state
from tests.support.deployment import Deployment, until
from worker.engines import scripted

TOKENS = 600
PACE_MS = 8
PARTS = ("gateway-1", "push-1", "archive-1", "worker-1", "redis", "kafka")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One deployment for all kills of this file."""
    made = Deployment(tmp_path_factory.mktemp("restarts") / "data")
    made.call(*made.up, "--detach")
    yield made
    made.close()


def row(deployment: Deployment, name: str) -> dict[str, Any]:
    return next(row for row in deployment.rows() if row["name"] == name)


def kill(deployment: Deployment, name: str) -> dict[str, Any]:
    """SIGKILL. Returns its row from before."""
    before = row(deployment, name)
    os.kill(before["pid"], signal.SIGKILL)
    return before


def back(deployment: Deployment, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until a killed part is ready again, with a new process. Returns its row."""

    def replaced() -> dict[str, Any] | None:
        now = row(deployment, before["name"])
        return now if now["ready"] and now["pid"] != before["pid"] else None

    found: dict[str, Any] = until(replaced, f"{before['name']} is ready again", 60)
    return found


@pytest.mark.parametrize("name", PARTS)
def test_a_killed_part_comes_back_on_its_port_and_the_answer_is_complete(
    deployment: Deployment, name: str
) -> None:
    """Symptom: the dead part stayed dead, and the printed cure opened another port."""
    gateway = f"http://127.0.0.1:{deployment.port}"
    watched = f"http://127.0.0.1:{deployment.push_port}" if name == "push-1" else gateway
    credential = deployment.call("token").strip()
    question = f"{name} dies"
    created = httpx.post(
        f"{gateway}/v1/responses",
        headers={"Authorization": f"Bearer {credential}"},
        json={
            "model": paths.MODEL,
            "input": question,
            "background": True,
            "store": True,
            "max_output_tokens": TOKENS + 1,
            "metadata": {"script_tokens": str(TOKENS), "script_pace_ms": str(PACE_MS)},
        },
    )
    assert created.status_code == 200, created.text
    before: dict[str, Any] = {}
    with chat_client.Client(watched, lambda: credential) as client:
        for answer, _ in client.watch(created.json()["id"]):
            if not before and len(answer.text) > 100:
                before = kill(deployment, name)
    assert before, "it was killed in mid-answer"
    assert answer.status == "completed", answer.error
    assert answer.text == scripted.expected_text([{"role": "user", "content": question}], TOKENS)

    now = back(deployment, before)
    assert now["address"] == before["address"]
    assert (now["restarts"], now["last_exit"]) == (before["restarts"] + 1, "SIGKILL")
    assert now["since"] > before["since"]
    until(lambda: all(one["ready"] for one in deployment.rows()), "every part is ready", 60)
    report = deployment.call("doctor")
    assert f"restarts: {now['restarts']} (last exit: SIGKILL)" in report
    assert "PROBLEM" not in report


def test_a_part_that_keeps_dying_is_said_so_and_returns_when_its_cause_is_gone(
    deployment: Deployment,
) -> None:
    before = row(deployment, "push-1")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kill(deployment, "push-1")

        def stolen() -> bool:
            try:
                thief.bind(("127.0.0.1", deployment.push_port))
            except OSError:
                return False
            return True

        until(stolen, "the port is taken", 10)
        thief.listen()
        until(
            lambda: "keeps dying" in row(deployment, "push-1")["detail"],
            "ps says that it keeps dying",
            60,
        )

        def problem() -> str:
            try:  # while it starts once more it is a note
                return deployment.call("doctor", code=1)
            except AssertionError:
                return ""

        report = until(problem, "doctor calls it a problem", 60)
        (line,) = (text for text in report.splitlines() if text.split()[1:2] == ["push-1"])
        assert line.startswith("PROBLEM")
        assert f"{deployment.data}/logs/push-1.log" in line
        said = (deployment.data / "logs" / "up.log").read_text()
        assert "3 times in a row" in said
        assert f"its last lines ({deployment.data}/logs/push-1.log)" in said
    now = back(deployment, before)
    assert now["address"] == before["address"]


def test_a_service_that_joined_is_known_to_ps_and_ended_by_down(tmp_path: Path) -> None:
    """Symptom: `down` said that everything was stopped, and left it."""
    deployment = Deployment(tmp_path / "data")
    deployment.call(*deployment.up, "--detach")
    joined = subprocess.Popen(
        deployment.command("worker"),
        cwd=paths.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        name = f"worker-joined-{joined.pid}"
        until(
            lambda: any(r["name"] == name and r["ready"] for r in deployment.rows()),
            "ps lists the service that joined, and it is ready",
            60,
        )
        assert f"ok      {name}" in deployment.call("doctor")
        said = deployment.call("down")
        assert name in said
        assert joined.wait(10) is not None
    finally:
        joined.kill()
        joined.wait()
        deployment.close()


def test_nothing_of_a_killed_supervisor_is_left_and_everybody_says_so(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "data")
    deployment.call(*deployment.up, "--detach")
    everyone = deployment.identities()
    used = [
        int(r["address"].split(":")[2 if "//" in r["address"] else 1].split("/")[0])
        for r in deployment.rows()
        if r["address"]
    ]
    os.kill(row(deployment, "supervisor")["pid"], signal.SIGKILL)
    assert processes.wait_gone(everyone, parts.SERVICE_GRACE_S)
    assert "was killed before it could stop" in deployment.call("ps")
    report = deployment.call("doctor", code=1)
    assert "was killed" in report
    assert f"--port {deployment.port} --push-port {deployment.push_port} --data" in report
    taken = set(used)

    def freed() -> bool:
        # One that was free may be another test's by now.
        taken.difference_update(port for port in list(taken) if ports.port_is_free(port))
        return not taken

    until(freed, "the ports are free", 30)
    claims = Path("/proc/net/unix").read_text()
    drawn_here = {deployment.port, deployment.push_port}
    assert [p for p in used if p not in drawn_here and f"tailrace-port-{p}\n" in claims] == []
    running = state.load(paths.Data(deployment.data).state)
    assert running
    scratch = Path(running.scratch)
    assert scratch.is_dir()
    until(lambda: deployment.rows() == [], "nothing runs", 30)
    deployment.call(*deployment.up, "--detach", "--workers", "0")
    assert all(r["ready"] for r in deployment.rows())
    assert not scratch.exists(), "the next start removes the sockets of killed engines"
    deployment.call("down")
    last = state.load(paths.Data(deployment.data).state)
    assert last
    assert last.scratch != running.scratch
    assert not Path(last.scratch).exists()
    # Without the state file the marks alone tell what belongs to the folder.
    left = subprocess.Popen(
        ["sleep", "60"],
        env={**os.environ, processes.RUN_MARK: processes.new_mark(deployment.data)},
    )
    (deployment.data / "state.json").unlink()
    assert [r["state"] for r in deployment.rows()] == ["orphan"]
    assert "stopped 1 process" in deployment.call("down")
    assert left.wait(5) == -signal.SIGTERM
    assert state.load(paths.Data(deployment.data).state) is None
    deployment.close()
