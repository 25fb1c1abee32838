"""A program on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

from tailrace.local import paths
from tests.support import waiting

COLUMNS = 40
_NOTES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """A program on a terminal of COLUMNS columns."""

    def __init__(self, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
        # The variables would count more than the terminal itself.
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            # A run in the background ignores SIGINT, and its programs inherit that.
            ["env", "--default-signal=INT", "setsid", "--ctty", "--wait", *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=paths.ROOT,
            env={**kept, "TERM": "xterm"},
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self._seen = b""

    def type(self, keys: str) -> None:
        self._seen = b""
        os.write(self._master, keys.encode())

    @property
    def shown(self) -> str:
        """What appeared since the last keys, without escape sequences."""
        try:
            while fresh := os.read(self._master, 65_536):
                self._seen += fresh
        except BlockingIOError:
            pass
        except OSError:  # the program has ended
            pass
        return _NOTES.sub("", self._seen.decode(errors="replace"))

    def until(self, text: str) -> str:
        waiting.eventually_blocking(
            lambda: text in self.shown, lambda: f"{text!r} in {self.shown!r}", within_s=60
        )
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
