"""A real Milvus server, from the package `milvus` of an interpreter that a developer names.

Its last version is 2.3.5. It is no dependency of the project: `TAILRACE_TEST_MILVUS_PYTHON` is the
path of a Python that has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

PYTHON: Final = os.environ.get("TAILRACE_TEST_MILVUS_PYTHON", "")
START_S: Final = 90.0
_PROGRAM: Final = """
import socket, sys
from milvus import MilvusServer, MilvusServerConfig
class Config(MilvusServerConfig):
    def try_bind_port(self, port):
        made = socket.socket()
        # Connections of a server that was killed keep its ports for a minute otherwise.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind(("127.0.0.1", port))
        except OSError:
            made.close()
            return None
        return made
server = MilvusServer(Config(data_dir=sys.argv[1]))
server.start()
print(server.server_proc.pid, server.listen_port, flush=True)
server.server_proc.wait()
"""


class MilvusServer:
    """One server on a folder; it may be killed and started again there.

    Attributes:
        _launcher: waits for the server; None while none runs.
        _pid: of the server itself.
        _port: what the client connects to; the same after each start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._launcher: subprocess.Popen[str] | None = None
        self._pid = 0
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it says that it is healthy. Raises RuntimeError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "launcher.log").open("a") as errors:
            self._launcher = subprocess.Popen(
                [PYTHON, "-c", _PROGRAM, str(self._folder)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._launcher.stdout is not None
        said = self._launcher.stdout.readline().split()
        if len(said) != 2 or (self._port and self._port != int(said[1])):
            raise RuntimeError(f"Milvus does not start; see {self._folder}/launcher.log")
        self._pid, self._port = int(said[0]), int(said[1])

    def kill(self) -> None:
        """End it as a power cut of its process would: SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it; idempotent."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        os.kill(self._pid, how)
        try:
            launcher.wait(START_S)
        except subprocess.TimeoutExpired:
            os.kill(self._pid, signal.SIGKILL)
            launcher.wait(START_S)
        if launcher.stdout is not None:
            launcher.stdout.close()
