"""`tailrace up` and `down` on real parts, with the scripted engine: what is started, what is said,
and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tailrace.local import paths, ports, processes
from tailrace.protocol import topics
from tests.support.deployment import Deployment, read_until, until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path / "data")
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One that runs, for tests that change nothing of it."""
    made = Deployment(tmp_path_factory.mktemp("running") / "data")
    made.call(*made.up, "--detach")
    yield made
    made.close()


def test_detached_it_returns_when_everything_is_ready_and_down_ends_all_of_it(
    deployment: Deployment,
) -> None:
    said = deployment.call(
        *deployment.up, "--detach", "--workers", "2", "--gateways", "2", "--pushes", "2"
    )
    assert f"http://127.0.0.1:{deployment.port}" in said
    assert f"tailrace chat --data {deployment.data}" in said
    assert "" not in said.splitlines()
    rows = deployment.rows()
    roles = [row["role"] for row in rows]
    assert {role: roles.count(role) for role in set(roles)} == {
        "supervisor": 1,
        "kafka": 1,
        "redis": 1,
        "gateway": 2,
        "push": 2,
        "archive": 1,
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


def test_a_second_up_on_the_same_folder_says_that_it_runs_already(running: Deployment) -> None:
    said = running.call(*running.up, code=1)
    assert "already running" in said
    assert f":{running.port}" in said
    assert f"tailrace down --data {running.data}`" in said
    assert "make up ARGS='--port" in said
    assert all(row["ready"] for row in running.rows())


def ends_in_order(
    process: subprocess.Popen[str], signum: signal.Signals, everyone: list[processes.Identity]
) -> None:
    process.send_signal(signum)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 0, rest
    assert "everything is stopped" in rest
    assert "is killed" not in rest
    assert not [who for who in everyone if processes.alive(who)]


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
    assert processes.marked(deployment.run) == []


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
        assert "stopped 1 process: sleep 60" in deployment.call("down")
        assert left.wait(5) == -signal.SIGTERM
    finally:
        left.kill()


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


def test_the_log_is_kept_over_a_restart_and_forgotten_with_fresh(deployment: Deployment) -> None:
    start = [*deployment.up, "--detach", "--verbose", "--workers", "0"]
    created = f"topics: {len(topics.table(('default',)))} created"
    assert created in deployment.call(*start)
    deployment.call("down")
    assert "topics: all there" in deployment.call(*start)
    deployment.call("down")
    assert created in deployment.call(*start, "--wipe")


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
    assert f"port {deployment.port} (--port) is taken by process {os.getpid()}" in said
    assert "--port" in said


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


def test_chat_asks_and_shows_the_whole_answer(running: Deployment) -> None:
    said = running.call("chat", "Say something.")
    assert "tokens/s)" in said


def test_one_service_alone_joins_what_runs(running: Deployment) -> None:
    port = ports.free_port()
    alone = subprocess.Popen(
        running.command("gateway", "--port", str(port)),
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
        credential = running.call("token").strip()
        models = httpx.get(
            f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {credential}"}
        ).json()
        assert [model["id"] for model in models["data"]] == [paths.MODEL]
    finally:
        alone.send_signal(signal.SIGTERM)
        assert alone.wait(30) == 0
