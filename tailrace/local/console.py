"""What the commands print: lines, and one status line of what takes long."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

# Without a terminal a status that stays is printed after this time, and then after ever longer
# ones: 15, 45, 105 s …
HEARTBEAT_S = 15.0
REDRAW_S = 1.0


class Console:
    """Prints lines and a status. Any thread may call it.

    On a terminal the status is one line that changes in place and goes when a line comes. Elsewhere
    it is printed as a line of its own when HEARTBEAT_S passed since anything was printed; that
    time doubles until another line comes.

    A closed terminal is not an error: the caller may still have processes to end.
    """

    def __init__(
        self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stdout
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._lock = threading.Lock()
        self._printed_at = clock()  # when something was printed last
        self._heartbeat = HEARTBEAT_S
        self._status = ""  # the text of the terminal's status line

    def line(self, text: str) -> None:
        """Print one line."""
        with self._lock:
            self._heartbeat = HEARTBEAT_S
            self._write(f"{self._erase_code()}{text}\n")

    def status(self, text: str) -> None:
        """Show the progress. May be called at any rate."""
        with self._lock:
            elapsed_s = self._clock() - self._printed_at
            if self._terminal:
                line = text[: shutil.get_terminal_size().columns - 1]
                if line != self._status and (elapsed_s >= REDRAW_S or not self._status):
                    self._write(f"\r\x1b[K{line}")
                    self._status = line
            elif elapsed_s >= self._heartbeat:
                self._heartbeat *= 2
                self._write(f"{text}\n")

    def clear(self) -> None:
        """Remove the status from the terminal."""
        with self._lock:
            erase = self._erase_code()
            if erase:
                self._write(erase)

    def _erase_code(self) -> str:
        erase = "\r\x1b[K" if self._status else ""
        self._status = ""
        return erase

    def _write(self, text: str) -> None:
        self._printed_at = self._clock()
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
