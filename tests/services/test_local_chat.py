"""`tailrace chat` in a real terminal while parts of a real deployment are away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    made = Deployment(tmp_path_factory.mktemp("chat") / "data")
    made.call(*made.up, "--detach")
    yield made
    made.close()


@pytest.fixture
def terminal(deployment: Deployment) -> Iterator[Terminal]:
    made = Terminal(*deployment.command("chat"))
    yield made
    made.close()


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
