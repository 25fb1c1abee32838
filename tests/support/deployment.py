"""`tailrace up` in a data folder and on ports of its own, as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tailrace.cli import control
from tailrace.local import paths, ports, processes, state
from tests.support import waiting

TAILRACE = [sys.executable, "-m", "tailrace"]
UP_S = 600  # for what hangs


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
        """What `tailrace ps --json` prints."""
        return [asdict(row) for row in control.rows(paths.Data(self.data))]

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

    def close(self) -> None:
        """`down`; nothing may be left."""
        self.call("down")
        assert processes.marked_in(self.data) == []


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
