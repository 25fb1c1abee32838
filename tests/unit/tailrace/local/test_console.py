"""What the commands print, on a terminal and elsewhere."""

from __future__ import annotations

import io

from tailrace.local.console import HEARTBEAT_S, Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_status_is_a_line_now_and_then() -> None:
    clock, stream = Clock(), io.StringIO()
    console = Console(stream, clock=clock)
    console.line("begin")
    for second in range(120):
        clock.now = float(second)
        console.status(f"loading: {second} s")
    console.line("ready")
    assert HEARTBEAT_S == 15
    told = [f"loading: {second} s" for second in (15, 45, 105)]
    assert stream.getvalue().splitlines() == ["begin", *told, "ready"]


def test_on_a_terminal_a_status_changes_in_place_and_a_line_takes_its_place() -> None:
    clock, stream = Clock(), Terminal()
    console = Console(stream, clock=clock)
    for second in (0.0, 0.1, 1.2):
        clock.now = second
        console.status(f"loading: {second} s")
    console.line("ready")
    console.clear()
    erase = "\r\x1b[K"
    assert stream.getvalue() == f"{erase}loading: 0.0 s{erase}loading: 1.2 s{erase}ready\n"
