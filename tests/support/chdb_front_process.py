"""The process of `chdb_front.py`; it may be killed and started again on its folder."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Final

from tailrace.local import ports
from tests.support import waiting

PYTHON: Final = os.environ.get("TAILRACE_TEST_CHDB_PYTHON", "")
USER: Final = "analytics"
PASSWORD: Final = "s3cret"


class ChdbFront:
    """One engine.

    Attributes:
        _process: None while none runs.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._data = folder / "data"
        self._port = ports.free_port()
        self._accepted = folder / "accepted"
        self.password_file = folder / "password"
        self._process: subprocess.Popen[bytes] | None = None
        for each in (self._accepted, self.password_file):
            each.write_text(PASSWORD)

    @property
    def url(self) -> str:
        return f"http://{USER}@127.0.0.1:{self._port}/analytics?password_file={self.password_file}"

    def start(self) -> None:
        """Start it, and wait until it listens."""
        front = Path(__file__).with_name("chdb_front.py")
        arguments = [str(self._data), str(self._port), USER, str(self._accepted)]
        self._process = subprocess.Popen([PYTHON, str(front), *arguments])
        waiting.eventually_blocking(self._listens, "the engine listens", within_s=60)

    def kill(self) -> None:
        """SIGKILL; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def accept(self, password: str) -> None:
        """From now on this password is the right one."""
        self._accepted.write_text(password)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0
