"""The load test as a user runs it: clean on a real stack, and not clean when a server loses,
doubles or swaps one event."""

from __future__ import annotations

import http
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from tests.journey.conftest import Stack

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
Event = dict[str, Any]


def locust(
    host: str, credential: str, summary: Path, *options: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the summary it wrote, and what it said."""
    command = [
        str(Path(sys.executable).with_name("locust")),
        "-f",
        "locustfile.py",
        "--headless",
        "--only-summary",
        "--host",
        host,
    ]
    environ = {**os.environ, "TAILRACE_CREDENTIAL": credential}
    done = subprocess.run(
        [*command, "--summary", str(summary), *options],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    said = done.stdout + done.stderr
    return (
        done.returncode,
        json.loads(summary.read_text()) if summary.exists() else {},
        said[-6000:],
    )


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """A Python program in a process of its own, because locust patches the standard library."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_users_who_drop_resume_and_cancel_lose_nothing(
    scripted_stack: Stack, tmp_path: Path
) -> None:
    code, found, said = locust(
        *(scripted_stack.url, scripted_stack.credential, tmp_path / "summary.json"),
        *(
            "-u",
            "13",
            "-r",
            "13",
            "-t",
            "100s",
            "--answers",
            "40",
            "--stop-timeout",
            "10",
            "--push-host",
            scripted_stack.push_url,
        ),
        *(
            "--scripted",
            "--tools",
            "--images",
            "--tokens",
            "40",
            "--drops",
            "0.5",
            "--cancels",
            "0.2",
        ),
    )
    assert code == 0, said
    assert (
        found["lost"],
        found["doubled"],
        found["misplaced"],
        found["wrong"],
        found["failed"],
    ) == (0, 0, 0, 0, 0)
    # Without these the run would have shown nothing.
    assert found["responses"] >= 40
    assert "run-time limit reached" not in said, "it ends with the answers that were asked for"
    assert found["drops"] >= 1
    assert found["resumes"] >= found["drops"]
    assert found["milliseconds"]["first token"]["p50"] > 0
    assert found["milliseconds"]["token gap"]["count"] > 100
    assert found["reads"] >= 1
    assert found["tool loops"] >= 1
    assert found["images"] >= 1
    assert found["milliseconds"]["connect"]["count"] >= 1


def events(rid: str) -> list[Event]:
    words = ["Once", " upon", " a", " time", " there", " was", " a", " river"]
    kinds: list[Event] = [
        {"type": "response.created", "response": {"id": rid}},
        *({"type": "response.output_text.delta", "delta": word} for word in words),
        {
            "type": "response.completed",
            "response": {
                "id": rid,
                "status": "completed",
                "output": [
                    {
                        "type": "message",
                        "content": [{"type": "output_text", "text": "".join(words)}],
                    }
                ],
                "usage": {"output_tokens": len(words)},
            },
        },
    ]
    return [{**event, "sequence_number": n} for n, event in enumerate(kinds)]


def honest(told: list[Event]) -> list[Event]:
    return told


def losing(told: list[Event]) -> list[Event]:
    return told[:4] + told[5:]


def doubling(told: list[Event]) -> list[Event]:
    return told[:4] + told[3:]


def swapping(told: list[Event]) -> list[Event]:
    return [*told[:3], told[4], told[3], *told[5:]]


def renumbering(told: list[Event]) -> list[Event]:
    """Loses a token and closes the ranks."""
    return [{**event, "sequence_number": n} for n, event in enumerate(losing(told))]


@contextmanager
def server(
    lie: Callable[[list[Event]], list[Event]],
    lie_again: Callable[[list[Event]], list[Event]] = honest,
    models_after_s: float = 0.0,
) -> Iterator[str]:
    """A gateway of a few lines, whose answers pass through `lie`, and when they are read again
    through `lie_again`. It takes `models_after_s` to name its models."""

    def plain(connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if path == "/v1/models":
            time.sleep(models_after_s)
            body = b'{"data":[{"id":"m"}]}'
        elif path.startswith("/v1/responses/"):
            body = b"".join(
                b"data: " + json.dumps(event).encode() + b"\n\n"
                for event in lie_again(events(path.rpartition("/")[2]))
            )
        else:
            return None
        return Response(
            http.HTTPStatus.OK,
            "OK",
            Headers({"content-length": str(len(body)), "connection": "close"}),
            body,
        )

    def answer(connection: ServerConnection) -> None:
        for number, _ in enumerate(connection):
            for event in lie(events(f"resp_{number}")):
                connection.send(json.dumps(event))

    with serve(answer, "127.0.0.1", 0, process_request=plain) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.socket.getsockname()[1]}"
        finally:
            running.shutdown()
            thread.join(10)


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (honest, ""),
        (losing, "1 lost"),
        (doubling, "1 doubled"),
        (swapping, "1 out of order"),
        (renumbering, "text differs from the final response"),
    ],
    ids=["honest", "lost", "doubled", "swapped", "renumbered"],
)
def test_a_server_that_lies_is_found_out(
    lie: Callable[[list[Event]], list[Event]], words: str, tmp_path: Path
) -> None:
    with server(lie) as host:
        code, found, said = locust(
            host,
            "x",
            tmp_path / "summary.json",
            "-u",
            "1",
            "-t",
            "60s",
            "--answers",
            "1",
            "--turns",
            "1",
            "--drops",
            "0",
            "--cancels",
            "0",
        )
    assert found["responses"] >= 1, said
    assert (code, bool(found["wrong"])) == ((1, True) if words else (0, False)), said
    assert words in said


def test_a_server_that_tells_another_story_later_is_found_out(tmp_path: Path) -> None:
    with server(honest, renumbering) as host:
        code, found, said = locust(
            *(
                host,
                "x",
                tmp_path / "summary.json",
                "-u",
                "10",
                "-r",
                "10",
                "-t",
                "8s",
                "--turns",
                "1",
                "--drops",
                "0",
                "--cancels",
                "0",
            )
        )
    assert found["reads"] >= 1, said
    assert (code, found["lost"]) == (1, 0), said
    assert found["wrong"] == found["reads"], said
    assert "another text than before" in said


@pytest.mark.parametrize("how", [(), ("--shape", "steady"), ("--processes", "2")])
def test_the_run_time_counts_from_the_first_user(how: tuple[str, ...], tmp_path: Path) -> None:
    """A run ended before its first user, because what comes before the users took that long."""
    with server(honest, models_after_s=5.0) as host:
        code, found, said = locust(
            *(host, "x", tmp_path / "summary.json"),
            *("-u", "4", "-r", "4", "-t", "4s", "--turns", "1", "--drops", "0", "--cancels", "0"),
            *how,
        )
    assert code == 0, said
    assert found["responses"] >= 4, said
    # An answer of the server has eight tokens and takes no time; users pause 0.5 to 2 s.
    assert found["tokens"] / 12 < found["tokens/s"] <= found["tokens"] / 1.0, said
    assert f"tokens/s {found['tokens/s']}" in said


def test_failures_have_no_part_in_the_percentiles() -> None:
    """They took no time, so that the more failed, the faster the service looked."""
    program = """
import locust  # patches the standard library, so it comes first
import json
from locust.env import Environment
import locustfile
environment = Environment()
environment.create_local_runner()
user = object.__new__(locustfile.Talker)
user.environment = environment
for _ in range(4):
    user.record("whole answer", 2.0)
for _ in range(16):
    user.record("whole answer", 0.0, RuntimeError("refused"))
entry = environment.stats.get("whole answer", "response")
total = environment.stats.total.get_response_time_percentile(0.5)
print(json.dumps([locustfile.summary(environment)["milliseconds"]["whole answer"], total,
    entry.num_failures, entry.num_requests]))
"""
    done = run_program(program)
    assert done.returncode == 0, done.stdout + done.stderr
    times = {"count": 4, "p50": 2000, "p90": 2000, "p99": 2000, "max": 2000}
    assert json.loads(done.stdout) == [times, 2000, 16, 20]


def test_a_user_who_closes_a_connection_can_be_stopped() -> None:
    """In a process of its own, because locust patches the standard library."""
    program = """
import locust  # patches the standard library, so it comes first
import gevent, socket, websocket
from locustfile import Socket
ours, theirs = socket.socketpair()
ours.settimeout(30)
connection = Socket.__new__(Socket)
connection._ws = websocket.WebSocket()
connection._ws.sock, connection._ws.connected = ours, True
def user():
    connection.close()
    return "it went on"
greenlet = gevent.spawn(user)
assert theirs.recv(2)[0] == 0x88, "a close frame, which gets no answer"
greenlet.kill()
print("end", greenlet.value)
assert theirs.recv(100) and theirs.recv(100) == b"", "the TCP connection is closed"
"""
    done = run_program(program)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stdout + done.stderr


def test_a_shape_rules_how_many_users_there_are(tmp_path: Path) -> None:
    """Without an end of its own the test would run until the deadline of `locust`."""
    with server(honest) as host:
        code, found, said = locust(
            *(
                host,
                "x",
                tmp_path / "summary.json",
                "-u",
                "10",
                "-t",
                "10s",
                "--shape",
                "spike",
                "--turns",
                "1",
                "--drops",
                "0",
                "--cancels",
                "0",
            )
        )
    assert (code, found["wrong"]) == (0, 0), said
    users = [
        int(line.partition("updating to ")[2].split()[0])
        for line in said.splitlines()
        if "Shape test updating to" in line
    ]
    assert users == [2, 10, 2], said
