"""`tailrace up` and `down` on real parts, with the scripted engine: what is started, what is said,
and that nothing stays behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.local import paths, ports, processes, state
from tests.support import waiting

TAILRACE = [sys.executable, "-m", "tailrace"]
UP_S = 120

pytestmark = pytest.mark.timeout(300)


@dataclass
class Deployment:
    """A data folder and ports of its own."""

    data: Path
    port: int = field(default_factory=ports.free_port)
    push_port: int = field(default_factory=ports.free_port)

    def command(self, *arguments: str) -> list[str]:
        return [*TAILRACE, *arguments, "--data", str(self.data)]

    def call(self, *arguments: str, seconds: float = 150, code: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            cwd=paths.ROOT,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == code, (
            f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout + done.stderr

    @property
    def up(self) -> list[str]:
        return [
            "up",
            "--engine",
            "scripted",
            "--port",
            str(self.port),
            "--push-port",
            str(self.push_port),
        ]

    def foreground(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*self.up, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=paths.ROOT,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.call("ps", "--json"))
        return found

    def identities(self) -> list[processes.Identity]:
        """Every process of the deployment, for certain."""
        found = [processes.identity(row["pid"]) for row in self.rows()]
        assert found
        assert all(found)
        return [who for who in found if who]

    @property
    def run(self) -> str:
        running = state.load(paths.Data(self.data).state)
        assert running
        return running.run


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "data")
    yield made
    made.call("down")
    assert processes.marked(made.run) == [] if (made.data / "state.json").exists() else True


def until(condition: Callable[[], Any], what: str, seconds: float = UP_S) -> Any:
    return waiting.eventually_blocking(condition, what, within_s=seconds)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What it said up to the line with `text`."""
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"it ended without saying {text!r}:\n{said}")


def test_detached_it_returns_when_everything_is_ready_and_down_ends_all_of_it(
    deployment: Deployment,
) -> None:
    said = deployment.call(
        *deployment.up, "--detach", "--workers", "2", "--gateways", "2", "--pushes", "2"
    )
    assert f"http://127.0.0.1:{deployment.port}" in said
    assert "curl -N" in said
    rows = deployment.rows()
    roles = [row["role"] for row in rows]
    assert {role: roles.count(role) for role in set(roles)} == {
        "supervisor": 1,
        "kafka": 1,
        "redis": 1,
        "gateway": 2,
        "push": 2,
        "worker": 2,
    }
    assert [row for row in rows if not row["ready"]] == []
    assert httpx.get(f"http://127.0.0.1:{deployment.port}/ready").status_code == 200
    everyone = deployment.identities()
    sessions = {os.getsid(who.pid) for who in everyone}
    assert len(sessions) == 1, (
        "a broker in a session of its own is scheduled as a group of its own, and starves"
    )

    deployment.call("down")
    assert not [who for who in everyone if processes.alive(who)]
    assert deployment.rows() == []
    assert "nothing runs here" in deployment.call("down")


def test_a_second_up_on_the_same_folder_says_that_it_runs_already(deployment: Deployment) -> None:
    deployment.call(*deployment.up, "--detach")
    said = deployment.call(*deployment.up, code=1)
    assert "already running" in said
    assert f":{deployment.port}" in said
    assert "tailrace down" in said
    assert all(row["ready"] for row in deployment.rows())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])  # SIGTERM is what `down` sends
def test_a_signal_ends_everything_in_order(deployment: Deployment, signum: signal.Signals) -> None:
    process = deployment.foreground()
    said = read_until(process, "ready: every part is up")
    assert "a question asked now waits in Kafka" in said or "worker-1 ready" in said
    everyone = deployment.identities()
    process.send_signal(signum)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0, rest
    assert "everything is stopped" in rest
    assert "is killed" not in rest
    assert not [who for who in everyone if processes.alive(who)]


def test_a_signal_while_things_start_ends_them_too(deployment: Deployment) -> None:
    process = deployment.foreground()
    read_until(process, "Redis ready")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=90)
    assert process.returncode == 0
    assert processes.marked(deployment.run) == []


def test_when_the_supervisor_is_killed_everything_dies_and_the_next_up_starts_clean(
    deployment: Deployment,
) -> None:
    deployment.call(*deployment.up, "--detach")
    everyone = deployment.identities()
    supervisor = next(row["pid"] for row in deployment.rows() if row["role"] == "supervisor")
    os.kill(supervisor, signal.SIGKILL)
    assert processes.wait_gone(everyone, 30), [
        processes.command(who.pid) for who in everyone if processes.alive(who)
    ]
    deployment.call(*deployment.up, "--detach")
    assert all(row["ready"] for row in deployment.rows())


def test_down_ends_what_a_killed_supervisor_left_behind(deployment: Deployment) -> None:
    """A grandchild has no parent-death signal of its own; the mark in its environment finds it."""
    deployment.call(*deployment.up, "--detach")
    left = subprocess.Popen(
        ["sleep", "60"],
        env={**os.environ, processes.RUN_MARK: deployment.run, processes.PART_MARK: "worker-1"},
    )
    try:
        supervisor = next(row["pid"] for row in deployment.rows() if row["role"] == "supervisor")
        os.kill(supervisor, signal.SIGKILL)
        until(
            lambda: all(row["state"] != "running" for row in deployment.rows()),
            "all children are gone",
        )
        assert [row["state"] for row in deployment.rows() if row["pid"] == left.pid] == ["orphan"]
        assert "ended 1 processes" in deployment.call("down")
        assert left.wait(5) == -signal.SIGTERM
    finally:
        left.kill()


def test_a_killed_worker_is_reported_and_the_others_go_on(deployment: Deployment) -> None:
    process = deployment.foreground("--workers", "2")
    read_until(process, "ready: every part is up")
    victim = next(row["pid"] for row in deployment.rows() if row["name"] == "worker-1")
    os.kill(victim, signal.SIGKILL)
    said = read_until(process, "the other parts go on")
    assert "worker-1 was ended by SIGKILL" in said
    assert f"one in its place: .venv/bin/tailrace worker --data {deployment.data};" in said
    rows = {row["name"]: row for row in deployment.rows()}
    assert (rows["worker-1"]["state"], rows["worker-1"]["ready"]) == ("exited (-9)", False)
    assert all(row["ready"] for name, row in rows.items() if name != "worker-1")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode == 0


def test_the_log_is_kept_over_a_restart_and_forgotten_with_fresh(deployment: Deployment) -> None:
    assert "topics: 8 created" in deployment.call(*deployment.up, "--detach", "--workers", "0")
    deployment.call("down")
    assert "topics: all there" in deployment.call(*deployment.up, "--detach", "--workers", "0")
    deployment.call("down")
    assert "topics: 8 created" in deployment.call(
        *deployment.up, "--detach", "--workers", "0", "--wipe"
    )


def test_wipe_leaves_a_folder_without_the_marker_alone(tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka" / "precious").touch()
    said = Deployment(tmp_path).call("up", "--engine", "scripted", "--wipe", code=2)
    assert "is not a data folder of Tailrace" in said
    assert (tmp_path / "kafka" / "precious").exists()


def test_a_taken_port_is_named_with_its_holder_and_what_to_do(deployment: Deployment) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", deployment.port))
        holder.listen()
        said = deployment.call(*deployment.up, code=1)
    assert f"port {deployment.port} is taken by process {os.getpid()}" in said
    assert "--port" in said


def test_a_given_broker_and_redis_are_used_and_not_started(
    deployment: Deployment, kafka: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_KAFKA", kafka)
    monkeypatch.setenv("TAILRACE_REDIS", redis_url)
    said = deployment.call(*deployment.up, "--detach")
    assert f"Kafka at {kafka} (given)" in said
    assert {row["role"] for row in deployment.rows()} == {"supervisor", "gateway", "push", "worker"}


def test_an_engine_url_that_does_not_answer_is_named(deployment: Deployment) -> None:
    url = f"http://127.0.0.1:{ports.free_port()}/v1"
    said = deployment.call(
        "up",
        "--engine",
        url,
        "--port",
        str(deployment.port),
        "--push-port",
        str(deployment.push_port),
        code=1,
    )
    assert f"the engine at {url} does not answer" in said


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--engine", "gpt"], "--engine gpt"), (["--gateways", "0"], "--gateways 0")],
)
def test_a_bad_option_is_named_before_anything_is_started(
    deployment: Deployment, arguments: list[str], text: str
) -> None:
    assert text in deployment.call("up", *arguments, code=2)
    assert not deployment.data.exists()


def test_token_prints_a_credential_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        Deployment(tmp_path / "data").command("token", "--sub", "ada", "--ttl", "15m"),
        capture_output=True,
        text=True,
        check=True,
        cwd=paths.ROOT,
    )
    assert done.stdout.count(".") == 2
    assert done.stdout.strip().replace(".", "").replace("-", "").replace("_", "").isalnum()
    assert done.stderr == ""


def test_chat_asks_and_shows_the_whole_answer(deployment: Deployment) -> None:
    deployment.call(*deployment.up, "--detach")
    said = deployment.call("chat", "Say something.")
    assert "tokens/s)" in said


def test_one_service_alone_joins_what_runs(deployment: Deployment) -> None:
    deployment.call(*deployment.up, "--detach")
    port = ports.free_port()
    alone = subprocess.Popen(
        deployment.command("gateway", "--port", str(port)),
        cwd=paths.ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def answers() -> bool:
            assert alone.poll() is None
            return (
                ports.accepts(port)
                and httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
            )

        until(answers, "the second gateway is ready")
        credential = deployment.call("token").strip()
        models = httpx.get(
            f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {credential}"}
        ).json()
        assert [model["id"] for model in models["data"]] == [paths.MODEL]
    finally:
        alone.send_signal(signal.SIGTERM)
        assert alone.wait(30) == 0
