"""One server program on one port, started, awaited and stopped (Kafka, Redis)."""

from __future__ import annotations

import abc
import time
from pathlib import Path
from typing import ClassVar

from tailrace.local.child_process import ChildProcess
from tailrace.local.processes import StartError
from tailrace.local.readiness import Readiness


class ServerProcess(abc.ABC):
    """One server program on one port. `start` and `stop` (or `kill`) may alternate.

    Attributes:
        title: what messages call it.
        start_s: how long a start may take.
        stop_s: how long it may take to stop before it is killed.
        shown_lines: how many lines of its output an error message shows.
        folder: its data.
        port: where it listens.
        run: the mark of this run.
        log: the file that gets its output.
        child: its process; None before start() and after stop() or kill().
    """

    title: ClassVar[str]
    start_s: ClassVar[float]
    stop_s: ClassVar[float]
    shown_lines: ClassVar[int] = 50

    def __init__(self, folder: Path, port: int, *, run: str, log: Path) -> None:
        self.folder = folder
        self.port = port
        self.run = run
        self.log = log
        self.child: ChildProcess | None = None
        self._port_owner: ChildProcess | None = None  # the process that is known to own the port

    @abc.abstractmethod
    def start(self) -> None:
        """Start the process. It is ready later (`ready`)."""

    @abc.abstractmethod
    def serves(self, child: ChildProcess) -> bool:
        """Whether its port answers, and this process is the one that answers."""

    @abc.abstractmethod
    def answers(self) -> bool:
        """Whether its port answers."""

    def ask(self) -> Readiness:
        """Whether it serves. Never raises. Its output is only read until it has served once."""
        if self.child is None or self.child.returncode is not None:
            return Readiness()
        if self._port_owner is not self.child:
            if not self.serves(self.child):
                return Readiness()
            self._port_owner = self.child
        return Readiness(ready=self.answers())

    def ready(self) -> bool:
        """Whether it serves. Raises StartError if it has ended."""
        assert self.child is not None, "start() comes first"
        if self.child.returncode is not None:
            raise StartError(
                f"{self.title} ended with exit code {self.child.returncode}; "
                f"{self._last_output(self.child)}"
            )
        return self.serves(self.child)

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until it serves. Raises StartError if it ends or the time is over."""
        limit = self.start_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        while not self.ready():
            if time.monotonic() >= deadline:
                assert self.child is not None
                raise StartError(
                    f"{self.title} was not ready after {limit:.0f} s; "
                    f"{self._last_output(self.child)}"
                )
            time.sleep(0.05)

    def stop(self, grace_s: float | None = None) -> None:
        """Stop it: SIGTERM, then SIGKILL after the grace (default: `stop_s`)."""
        if self.child:
            self.child.stop(self.stop_s if grace_s is None else grace_s)
            self.child = None

    def kill(self) -> None:
        """Send SIGKILL: it ends like after a crash."""
        if self.child:
            self.child.kill()
            self.child = None

    def _last_output(self, child: ChildProcess) -> str:
        return f"its last lines:\n{child.last_lines(self.shown_lines)}"
