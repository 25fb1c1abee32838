"""`tailrace chat` in a real terminal on a real deployment."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator

import pytest

from tailrace.local import paths
from tests.support import waiting
from tests.support.deployment import Deployment

COLUMNS = 40
NOTES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("chat") / "data")
    made.call(*made.up, "--detach")
    yield made
    made.close()


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
        return NOTES.sub("", self._seen.decode(errors="replace"))

    def until(self, text: str) -> str:
        waiting.eventually_blocking(
            lambda: text in self.shown, lambda: f"{text!r} in {self.shown!r}", within_s=60
        )
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(deployment: Deployment) -> Iterator[Terminal]:
    made = Terminal(*deployment.command("chat"))
    yield made
    made.close()


def test_a_dialogue_wraps_words_edits_lines_and_obeys_commands(terminal: Terminal) -> None:
    terminal.until("/help lists the commands")
    terminal.type("/help\r")
    assert "/model NAME" in terminal.until("Ctrl-C stops an answer")
    terminal.type("wrong\x15About the river Elbe.\r")  # Ctrl-U clears the line
    answer = terminal.until("tokens/s)")
    body = answer[answer.index("You asked") : answer.index("tokens, first")].splitlines()[:-1]
    assert len(body) > 2, answer
    assert max(map(len, body)) <= COLUMNS, body
    assert " ".join(body).startswith("You asked: “About the river Elbe.” — this is the scripted")
    terminal.type("\x1b[A\x1b[A")  # the arrow key brings back the line before the last one
    terminal.until("/help")
    terminal.type("\x15/quit\r")
    assert terminal.process.wait(20) == 0


def test_what_it_waits_for_is_told_and_ctrl_c_cancels_and_then_leaves(
    terminal: Terminal, deployment: Deployment
) -> None:
    terminal.until("/help lists the commands")
    worker = next(row["pid"] for row in deployment.rows() if row["role"] == "worker")
    os.kill(worker, signal.SIGSTOP)
    try:
        terminal.type("Is anybody there?\r")
        terminal.until("no engine is there yet")
        terminal.type("\x03")
        terminal.until("(stopped; Ctrl-C again leaves)")
        terminal.type("\x03")
        assert terminal.process.wait(20) == 0
    finally:
        os.kill(worker, signal.SIGCONT)


def test_a_gateway_that_dies_is_told_and_the_question_is_answered(
    terminal: Terminal, deployment: Deployment
) -> None:
    terminal.until("/help lists the commands")
    gateway = next(row["pid"] for row in deployment.rows() if row["role"] == "gateway")
    os.kill(gateway, signal.SIGKILL)
    terminal.type("Are you back?\r")
    said = terminal.until("tokens/s)")
    assert "(connection lost, retrying)" in said
    assert "(connected again)" in said
    assert "Are you back?" in said[said.index("You asked") :]
