"""What an installation prints, and how its steps end."""

from __future__ import annotations

import io
import threading
import time

from tailrace.local import install_steps, processes
from tailrace.local.console import Console
from tailrace.local.install_steps import InstallError, Progress, Step
from tests.support import waiting


def progress() -> tuple[Progress, io.StringIO]:
    stream = io.StringIO()
    return Progress(Console(stream, clock=lambda: time.monotonic() * 1000)), stream


def test_what_is_done_is_neither_repeated_nor_told() -> None:
    shown, stream = progress()
    done = Step("Java", lambda: True, lambda: (_ for _ in ()).throw(AssertionError))
    assert install_steps.perform_lane([done], shown) is None
    assert not done.due()
    assert (stream.getvalue(), shown.performed) == ("", 0)


def test_a_running_step_is_told_with_its_seconds_and_then_that_it_is_installed() -> None:
    shown, stream = progress()
    go_on = threading.Event()

    def told() -> bool:
        return "installing page" in stream.getvalue()

    def install() -> None:
        waiting.eventually_blocking(told, "the running step is told")
        go_on.set()

    with shown.shown():
        assert install_steps.perform_lane([Step("page", lambda: False, install)], shown) is None
    assert go_on.is_set()
    assert "  installed page in" in stream.getvalue()
    assert shown.running == {}


def test_an_error_ends_its_lane_and_a_check_that_cannot_be_made_yet_is_due() -> None:
    shown, _ = progress()

    def fails() -> None:
        raise InstallError("no disk")

    def unknown() -> bool:
        raise processes.StartError("no Java")

    steps = [Step("one", lambda: False, fails), Step("two", unknown, fails)]
    assert [step.due() for step in steps] == [True, True]
    error = install_steps.perform_lane(steps, shown)
    assert str(error) == "no disk"
    assert str(install_steps.perform_lane(steps[1:], shown)) == "two: no Java"
