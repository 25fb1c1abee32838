"""`tailrace up` on real parts, with the scripted engine: what is started and said, that a killed
part comes back, what `ps`, `doctor` and `down` tell, and that nothing stays behind.

The tests share one deployment, and the last two end it.
"""

from __future__ import annotations

import json
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
from tailrace.local import infrastructure, parts, paths, ports, processes, state
from tailrace.protocol import topics
from tests.support import terminal as terminals
from tests.support.deployment import Deployment, read_until, until
from worker.engines import scripted

TOKENS = 300
PACE_MS = 8

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A folder and ports of the test's own."""
    made = Deployment(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, str]]:
    """The deployment that the tests share, and what `up` said."""
    made = Deployment(tmp_path_factory.mktemp("running") / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAILRACE_SESSION_TIMEOUT_MS", "1500")
        said = made.call(*made.up, "--detach")
    yield made, said
    made.close()


@pytest.fixture
def running(started: tuple[Deployment, str]) -> Deployment:
    return started[0]


def test_detached_it_returns_when_everything_is_ready(started: tuple[Deployment, str]) -> None:
    running, said = started
    assert f"http://127.0.0.1:{running.port}" in said
    assert f"tailrace chat --data {running.data}" in said
    assert "" not in said.splitlines()
    rows = json.loads(running.call("ps", "--json"))
    assert sorted(row["role"] for row in rows) == sorted(
        ("supervisor", "kafka", "redis", "gateway", "push", "archive", "worker")
    )
    assert [row for row in rows if not row["ready"]] == []
    assert httpx.get(f"http://127.0.0.1:{running.port}/ready").status_code == 200
    sessions = {os.getsid(who.pid) for who in running.identities()}
    assert len(sessions) == 1, (
        "a broker in a session of its own is scheduled as a group of its own, and starves"
    )


def test_a_second_up_on_the_same_folder_says_that_it_runs_already(running: Deployment) -> None:
    said = running.call(*running.up, code=1)
    assert "already running" in said
    assert f":{running.port}" in said
    assert f"tailrace down --data {running.data}`" in said
    assert "make up ARGS='--port" in said
    assert all(row["ready"] for row in running.rows())


def test_chat_asks_and_shows_the_whole_answer(running: Deployment) -> None:
    said = running.call("chat", "Say something.")
    assert "tokens/s)" in said


@pytest.fixture
def terminal(running: Deployment) -> Iterator[terminals.Terminal]:
    made = terminals.Terminal(*running.command("chat"))
    yield made
    made.close()


def test_a_dialogue_wraps_words_edits_lines_and_obeys_commands(
    terminal: terminals.Terminal,
) -> None:
    terminal.until("/help lists the commands")
    terminal.type("/help\r")
    assert "/model NAME" in terminal.until("Ctrl-C stops an answer")
    terminal.type("wrong\x15About the river Elbe.\r")  # Ctrl-U clears the line
    answer = terminal.until("tokens/s)")
    body = answer[answer.index("You asked") : answer.index("tokens, first")].splitlines()[:-1]
    assert len(body) > 2, answer
    assert max(map(len, body)) <= terminals.COLUMNS, body
    assert " ".join(body).startswith("You asked: “About the river Elbe.” — this is the scripted")
    terminal.type("\x1b[A\x1b[A")  # the arrow key brings back the line before the last one
    terminal.until("/help")
    terminal.type("\x15/quit\r")
    assert terminal.process.wait(20) == 0


def row(running: Deployment, name: str) -> dict[str, Any]:
    return next(row for row in running.rows() if row["name"] == name)


def kill(running: Deployment, name: str) -> dict[str, Any]:
    """SIGKILL. Returns its row from before."""
    before = row(running, name)
    os.kill(before["pid"], signal.SIGKILL)
    return before


def back(running: Deployment, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until a killed part is ready again, with a new process. Returns its row."""

    def replaced() -> dict[str, Any] | None:
        now = row(running, before["name"])
        return now if now["ready"] and now["pid"] != before["pid"] else None

    found: dict[str, Any] = until(replaced, f"{before['name']} is ready again", 60)
    return found


@pytest.mark.parametrize(
    "name",
    [
        "worker-1",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("gateway-1", "push-1", "archive-1", "redis", "kafka")
        ),
    ],
)
def test_a_killed_part_comes_back_on_its_port_and_the_answer_is_complete(
    running: Deployment, name: str
) -> None:
    """Symptom: the dead part stayed dead, and the printed cure opened another port."""
    gateway = f"http://127.0.0.1:{running.port}"
    watched = f"http://127.0.0.1:{running.push_port}" if name == "push-1" else gateway
    credential = running.call("token").strip()
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
                before = kill(running, name)
    assert before, "it was killed in mid-answer"
    assert answer.status == "completed", answer.error
    assert answer.text == scripted.expected_text([{"role": "user", "content": question}], TOKENS)

    now = back(running, before)
    assert now["address"] == before["address"]
    assert (now["restarts"], now["last_exit"]) == (before["restarts"] + 1, "SIGKILL")
    assert now["since"] > before["since"]
    until(lambda: all(one["ready"] for one in running.rows()), "every part is ready", 60)
    report = running.call("doctor")
    assert f"restarts: {now['restarts']} (last exit: SIGKILL)" in report
    assert "PROBLEM" not in report


@pytest.mark.nightly
def test_a_part_that_keeps_dying_is_said_so_and_returns_when_its_cause_is_gone(
    running: Deployment,
) -> None:
    before = row(running, "push-1")
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kill(running, "push-1")

        def stolen() -> bool:
            try:
                thief.bind(("127.0.0.1", running.push_port))
            except OSError:
                return False
            return True

        until(stolen, "the port is taken", 10)
        thief.listen()
        until(
            lambda: "keeps dying" in row(running, "push-1")["detail"],
            "ps says that it keeps dying",
            60,
        )

        def problem() -> str:
            try:  # while it starts once more it is a note
                return running.call("doctor", code=1)
            except AssertionError:
                return ""

        report = until(problem, "doctor calls it a problem", 60)
        (line,) = (text for text in report.splitlines() if text.split()[1:2] == ["push-1"])
        assert line.startswith("PROBLEM")
        assert f"{running.data}/logs/push-1.log" in line
        said = (running.data / "logs" / "up.log").read_text()
        assert "3 times in a row" in said
        assert f"its last lines ({running.data}/logs/push-1.log)" in said
    now = back(running, before)
    assert now["address"] == before["address"]


def ends_in_order(
    process: subprocess.Popen[str], signum: signal.Signals, everyone: list[processes.Identity]
) -> None:
    process.send_signal(signum)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0, rest
    assert "everything is stopped" in rest
    assert "is killed" not in rest
    assert not [who for who in everyone if processes.alive(who)]


@pytest.mark.nightly
def test_when_its_terminal_is_closed_everything_ends_in_order(deployment: Deployment) -> None:
    process = deployment.foreground()
    said = read_until(process, "ready: every part is up")
    assert f"page      http://127.0.0.1:{deployment.port}" in said
    ends_in_order(process, signal.SIGHUP, deployment.identities())


def test_a_signal_while_things_start_ends_them_too(deployment: Deployment) -> None:
    process = deployment.foreground()
    read_until(process, "Redis is ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode == 0
    assert processes.find_marked(deployment.run) == []


@pytest.mark.nightly
def test_without_restarts_a_killed_worker_stays_ended_and_the_others_go_on_until_control_c(
    deployment: Deployment,
) -> None:
    process = deployment.foreground("--workers", "2", "--no-restart")
    read_until(process, "ready: every part is up")
    everyone = deployment.identities()
    victim = next(row["pid"] for row in deployment.rows() if row["name"] == "worker-1")
    os.kill(victim, signal.SIGKILL)
    said = read_until(process, "--no-restart")
    assert "worker-1 was ended by SIGKILL and stays ended" in said
    assert f"tailrace down --data {deployment.data}`" in said
    rows = {row["name"]: row for row in deployment.rows()}
    assert (rows["worker-1"]["state"], rows["worker-1"]["ready"]) == ("ended (SIGKILL)", False)
    assert all(row["ready"] for name, row in rows.items() if name != "worker-1")
    report = deployment.call("doctor", code=1)
    assert f"tailrace up --engine scripted --port {deployment.port}" in report
    ends_in_order(process, signal.SIGINT, everyone)


@pytest.mark.nightly
def test_the_log_is_forgotten_with_wipe(deployment: Deployment) -> None:
    start = [*deployment.up, "--detach", "--verbose", "--workers", "0"]
    created = f"topics: {len(topics.table(('default',)))} created"
    assert created in deployment.call(*start)
    deployment.call("down")
    assert created in deployment.call(*start, "--wipe")


def test_a_taken_port_is_named_with_its_holder_and_what_to_do(deployment: Deployment) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", deployment.port))
        holder.listen()
        said = deployment.call(*deployment.up, code=1)
    assert f"port {deployment.port} (--port) is taken by process {os.getpid()}" in said
    assert "--port" in said


@pytest.mark.nightly
def test_a_given_broker_and_redis_are_used_and_not_started(
    deployment: Deployment, kafka: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_KAFKA", kafka)
    monkeypatch.setenv("TAILRACE_REDIS", redis_url)
    said = deployment.call(*deployment.up, "--detach")
    assert f"Kafka at {kafka} (given)" in said
    assert {row["role"] for row in deployment.rows()} == {
        *("supervisor", "gateway", "push", "worker", "archive")
    }


def test_nothing_of_a_killed_supervisor_is_left_and_everybody_says_so(running: Deployment) -> None:
    """And the next start finds the log as it was."""
    everyone = running.identities()
    used = [
        int(r["address"].split(":")[2 if "//" in r["address"] else 1].split("/")[0])
        for r in running.rows()
        if r["address"]
    ]
    os.kill(row(running, "supervisor")["pid"], signal.SIGKILL)
    assert processes.wait_until_ended(everyone, parts.SERVICE_GRACE_S)
    assert "was killed before it could stop" in running.call("ps")
    report = running.call("doctor", code=1)
    assert "was killed" in report
    assert f"--port {running.port} --push-port {running.push_port} --data" in report
    taken = set(used)

    def freed() -> bool:
        # One that was free may be another test's by now.
        taken.difference_update(port for port in list(taken) if ports.port_is_free(port))
        return not taken

    until(freed, "the ports are free")
    claims = Path("/proc/net/unix").read_text()
    # The first deployment to start has the usual ports: by now another test's may be that.
    not_only_its = {
        running.port,
        running.push_port,
        infrastructure.KAFKA_PORT,
        infrastructure.REDIS_PORT,
    }
    assert [p for p in used if p not in not_only_its and f"tailrace-port-{p}\n" in claims] == []
    before = state.load(paths.Data(running.data).state)
    assert before
    assert Path(before.scratch).is_dir()
    until(lambda: running.rows() == [], "nothing runs")
    # A grandchild has no parent-death signal of its own; the mark in its environment finds it.
    left = subprocess.Popen(["sleep", "600"], env={**os.environ, processes.RUN_MARK: running.run})
    said = running.call(*running.up, "--detach", "--verbose", "--workers", "0")
    assert left.wait(5) == -signal.SIGTERM
    assert "ended 1 process left by a supervisor that was killed" in said
    assert "topics: all there" in said
    assert all(r["ready"] for r in running.rows())
    assert not Path(before.scratch).exists(), "the next start removes the sockets of killed engines"


def test_down_ends_all_of_it_and_what_joined(running: Deployment) -> None:
    """Symptom: `down` said that everything was stopped, and left what had joined."""
    port = ports.free_port()
    joined = subprocess.Popen(
        running.command("gateway", "--port", str(port)),
        cwd=paths.ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        name = f"gateway-joined-{joined.pid}"

        def serves() -> bool:
            assert joined.poll() is None
            return any(r["name"] == name and r["ready"] for r in running.rows())

        until(serves, "ps lists the service that joined, and it is ready")
        assert f"ok      {name}" in running.call("doctor")
        credential = running.call("token").strip()
        models = httpx.get(
            f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {credential}"}
        ).json()
        assert [model["id"] for model in models["data"]] == [paths.MODEL]
        everyone = running.identities()
        assert name in running.call("down")
        assert joined.wait(10) is not None
    finally:
        joined.kill()
        joined.wait()
    assert not [who for who in everyone if processes.alive(who)]
    assert running.rows() == []
    assert "nothing runs here" in running.call("down")
    last = state.load(paths.Data(running.data).state)
    assert last
    assert not Path(last.scratch).exists()
