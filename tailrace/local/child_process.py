"""One program started by this process: it dies with this process, and its output is in a file."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tailrace.local import processes


class ChildProcess:
    """One started program. Start it from the main thread: the kernel's parent-death signal follows
    the thread that forked.

    It has a process group of its own, so that a terminal's Ctrl-C reaches the supervisor alone. It
    stays in the supervisor's session: the scheduler treats a session as one group, and a group of
    its own would get too little processor time.

    Attributes:
        name: what messages and the mark in its environment call it.
        command: its program and arguments.
        log: the file that gets its output.
        run: the mark of this run.
        log_start: where its own output begins in the file.
        identity: pid and start time.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environ: Mapping[str, str],
        log: Path,
        run: str,
        cwd: Path | None = None,
        death_signal: int = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.run = run
        log.parent.mkdir(parents=True, exist_ok=True)
        marks = {processes.RUN_MARK: run, processes.PART_MARK: name}
        with log.open("ab") as output:
            self.log_start = output.tell()
            try:
                self._popen = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**environ, **marks},
                    cwd=cwd,
                    process_group=0,
                    preexec_fn=processes.die_with(os.getpid(), death_signal),
                )
            except OSError as error:
                raise processes.StartError(
                    f"{name}: cannot run {self.command[0]}: {error.strerror}"
                ) from error
        identity = processes.identity(self._popen.pid)
        self.identity = identity or processes.Identity(self._popen.pid, 0)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal number when one ended it."""
        return self._popen.poll()

    def send(self, signum: int) -> None:
        """Signal it, if it still runs."""
        if self.returncode is None:
            self._popen.send_signal(signum)

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code; None if it still runs at the timeout."""
        try:
            return self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, grace_s: float) -> int:
        """Send SIGTERM, wait `grace_s`, send SIGKILL; then end every process it left. Blocks."""
        self.send(signal.SIGTERM)
        code = self.wait(grace_s)
        if code is None:
            self.send(signal.SIGKILL)
            code = self._popen.wait()
        self.sweep()
        return code

    def kill(self) -> None:
        """Send SIGKILL and wait for its end. Processes that it started stay."""
        self.send(signal.SIGKILL)
        self._popen.wait()

    def sweep(self) -> list[processes.Identity]:
        """End every process that it left. Returns them."""
        return processes.sweep(self.run, self.name)

    def output(self) -> str:
        """What it has written so far."""
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read().decode(errors="replace")

    def last_lines(self, count: int) -> str:
        """The last lines of its output."""
        return "\n".join(self.output().removesuffix("\n").split("\n")[-count:])
