"""The watch over the parts: ends, restarts, what is said, and what the state file gets."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.local import child_process, parts, processes, readiness, restarts, state
from tests.support import waiting

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


class Sleeper:
    """A program that is ready while it runs; `command` may be changed between starts."""

    def __init__(self, tmp_path: Path, name: str = "worker-1") -> None:
        self.name = name
        self.log = tmp_path / f"{name}.log"
        self.run = processes.new_mark(tmp_path)
        self.command = SLEEP
        self.ready = True
        self._child: child_process.ChildProcess | None = None

    @property
    def child(self) -> child_process.ChildProcess | None:
        return self._child

    def start(self) -> None:
        self._child = child_process.ChildProcess(
            self.name, self.command, environ=os.environ, log=self.log, run=self.run
        )

    def ask(self) -> readiness.Readiness:
        return readiness.Readiness(ready=self.ready, detail="" if self.ready else "loading")


class Watched:
    """One part under `Parts`, with everything that was said."""

    def __init__(self, tmp_path: Path, *, restart: bool = True) -> None:
        self.said: list[str] = []
        self.program = Sleeper(tmp_path)
        self.program.start()
        assert self.program.child
        identity = self.program.child.identity
        self.part = state.Part(
            name="worker-1",
            role="worker",
            pid=identity.pid,
            started=identity.started,
            log=str(self.program.log),
        )
        self.parts = parts.Parts(
            tmp_path,
            restart=restart,
            cure="`tailrace down`",
            say=self.said.append,
            note=lambda text: None,
            show=None,
        )
        self.parts.adopt(self.program, self.part)

    def kill(self) -> None:
        os.kill(self.part.pid, signal.SIGKILL)

    def until_said(self, text: str) -> None:
        def look() -> bool:
            self.parts.poll()
            return any(text in line for line in self.said)

        waiting.eventually_blocking(look, lambda: f"{text!r} in {self.said}", within_s=30)


Watch = Callable[..., Watched]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Makes a `Watched` with a short back-off, and ends its process after the test."""
    monkeypatch.setattr(restarts, "FIRST_S", 0.05)
    monkeypatch.setattr(parts, "PROBE_STARTING_S", 0.0)
    made: list[Watched] = []

    def make(*, restart: bool = True) -> Watched:
        made.append(Watched(tmp_path, restart=restart))
        return made[-1]

    yield make
    for one in made:
        assert one.program.child
        one.program.child.stop(0)


def test_a_killed_part_is_started_again_and_the_state_says_so(watch: Watch) -> None:
    watched = watch()
    before = watched.part.identity
    watched.kill()
    watched.until_said("worker-1 is ready again")
    assert watched.said[0] == "worker-1 was ended by SIGKILL; starts again in 0.05 s"
    part = watched.part
    assert part.identity != before
    assert processes.alive(part.identity)
    assert (part.restarts, part.last_exit, part.exit_code) == (1, -signal.SIGKILL, None)
    assert part.ready
    assert part.since > 0


def test_a_part_that_keeps_dying_is_said_so_with_its_log_and_last_lines(watch: Watch) -> None:
    watched = watch()
    watched.program.ready = False
    watched.program.command = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]
    watched.kill()
    watched.until_said("3 times in a row")
    assert "ended with exit code 3, 3 times in a row; starts again in 0.2 s" in watched.said[-1]
    assert str(watched.program.log) in watched.said[-1]
    assert "no such model" in watched.said[-1]
    assert watched.part.detail.startswith("keeps dying, 3 times in a row")


def test_without_restarts_an_ended_part_stays_ended_and_the_cure_is_named(watch: Watch) -> None:
    watched = watch(restart=False)
    watched.kill()
    watched.until_said("stays ended (--no-restart): `tailrace down`")
    watched.parts.poll()
    assert (watched.part.exit_code, watched.part.restarts) == (-signal.SIGKILL, 0)
    assert processes.find_marked(watched.program.run) == []


def test_what_a_part_left_is_ended_before_it_is_started_again(watch: Watch, tmp_path: Path) -> None:
    """A worker's engine would hold the memory that the next worker needs."""
    watched = watch()
    left = child_process.ChildProcess(
        "worker-1",
        SLEEP,
        environ=os.environ,
        log=tmp_path / "engine.log",
        run=watched.program.run,
    )
    watched.kill()
    watched.until_said("(it left 1 process, now ended); starts again")
    assert left.wait(5) == -signal.SIGKILL
    watched.until_said("is ready again")


def test_a_program_that_cannot_be_run_any_more_is_tried_again(watch: Watch, tmp_path: Path) -> None:
    watched = watch()
    watched.program.command = [str(tmp_path / "nothing")]
    watched.kill()
    watched.until_said("cannot run")
    watched.program.command = SLEEP
    watched.until_said("is ready again")


def test_services_that_joined_end_with_the_others(watch: Watch, tmp_path: Path) -> None:
    watched = watch()
    joined = child_process.ChildProcess(
        "worker-joined-7", SLEEP, environ=os.environ, log=tmp_path / "j", run=watched.program.run
    )
    kafka = Sleeper(tmp_path, "kafka")
    kafka.run = watched.program.run
    kafka.start()
    assert kafka.child
    own = state.Part(name="kafka", role="kafka", pid=kafka.child.pid, started=0)
    watched.parts.adopt(kafka, own)
    watched.parts.stop_services(hurry=lambda: False)
    assert joined.returncode == -signal.SIGTERM
    assert watched.program.child
    assert watched.program.child.returncode == -signal.SIGTERM
    assert kafka.child.returncode is None
    kafka.child.stop(0)
