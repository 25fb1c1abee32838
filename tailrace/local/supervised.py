"""One part of the deployment: its program, and its state in the supervisor."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tailrace.local import child_process, logs, paths, plan, readiness, restarts, state

MAX_LINES = 25


class Program(Protocol):
    """A program that can be started again and again. `child` is its newest process."""

    @property
    def child(self) -> child_process.ChildProcess | None: ...

    def start(self) -> None:
        """Start a process, on the same port and with the same settings as before.

        Raises:
            processes.StartError: the program cannot be run.
        """

    def ask(self) -> readiness.Readiness:
        """Whether it is ready. Never raises."""


class ServiceProgram:
    """A service. Every process of it adds to the same log file.

    `scratch` gets the sockets of vLLM's processes, which a killed engine does not remove.
    """

    def __init__(self, service: plan.Service, *, run: str, log: Path, scratch: str) -> None:
        self.service = service
        self.log = log
        self._run = run
        self._scratch = scratch
        self._child: child_process.ChildProcess | None = None

    @property
    def child(self) -> child_process.ChildProcess | None:
        """None before start()."""
        return self._child

    def start(self) -> None:
        self._child = child_process.ChildProcess(
            self.service.name,
            self.service.command,
            environ={
                **os.environ,
                **self.service.environ,
                # Not TMPDIR, where libraries also store data for the next start.
                "VLLM_RPC_BASE_PATH": self._scratch,
            },
            log=self.log,
            run=self._run,
            cwd=paths.ROOT,
        )

    def ask(self) -> readiness.Readiness:
        return readiness.query(self.service.probe)

    def part(self) -> state.Part:
        """Its entry for the state file, after start()."""
        assert self._child is not None, "start() comes first"
        return state.Part(
            name=self.service.name,
            role=self.service.role,
            pid=self._child.identity.pid,
            started=self._child.identity.started,
            address=self.service.address,
            probe=self.service.probe,
            log=str(self.log),
            since=time.time(),
        )


@dataclass(slots=True)
class Supervised:
    """One part and its state.

    Attributes:
        program: the program that runs it.
        part: its entry in the state file.
        answer: its last readiness.
        next_probe: when to probe next (monotonic).
        ended: its end was noticed, and it has not been started again.
        ended_at: when that was (monotonic); 0 before the first end.
        ever_ready: it was ready once, so it can work with these settings.
        failed: it ended by itself before it was ever ready, while the deployment started.
        restarts: when it is started again.
    """

    program: Program
    part: state.Part
    answer: readiness.Readiness = field(default_factory=readiness.Readiness)
    next_probe: float = 0.0
    ended: bool = False
    ended_at: float = 0.0
    ever_ready: bool = False
    failed: bool = False
    restarts: restarts.Restarts = field(default_factory=restarts.Restarts)

    @property
    def child(self) -> child_process.ChildProcess:
        """Its newest process."""
        assert self.program.child is not None, "it was started"
        return self.program.child

    def last_lines(self) -> str:
        """Where its log is, and the last lines of its newest process."""
        lines = self.child.last_lines(MAX_LINES).split("\n")
        text = "\n".join(f"    {logs.readable(line)}" for line in lines if line.strip())
        return f"its last lines ({self.part.log}):\n{text}"

    def why_failed(self) -> str:
        """One sentence and its last lines."""
        code = self.child.returncode
        reason = (
            describe_exit(code)
            if code is not None
            else f"reports: {self.answer.detail or 'failed'}"
        )
        return f"{self.part.name} {reason}; {self.last_lines()}"

    def why_late(self, still_s: float, cpu_s: float) -> str:
        """The same of a part that stands still before it is ready."""
        answer = self.answer
        reason = (
            f"reports: {answer.detail or answer.state}"
            if answer.state
            else f"has answered nothing and used {cpu_s:.0f} s of CPU"
        )
        return (
            f"{self.part.name} is not ready, and nothing has changed for {still_s:.0f} s: it "
            f"{reason}; {self.last_lines()}"
        )


def exit_name(code: int) -> str:
    """An exit code in one word: the signal's name for a negative one."""
    return signal.Signals(-code).name if code < 0 else f"code {code}"


def describe_exit(code: int) -> str:
    """An exit code in words; a negative one is a signal."""
    return f"was ended by {exit_name(code)}" if code < 0 else f"ended with exit {exit_name(code)}"
