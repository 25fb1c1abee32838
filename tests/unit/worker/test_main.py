"""`python -m worker`: what a wrong setting ends with."""

from __future__ import annotations

import pytest

from worker import __main__ as program


def test_a_misconfigured_worker_says_which_variable_in_one_line_and_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TAILRACE_ENGINE", "ftp://nowhere")
    assert program.main() == 2
    output = capsys.readouterr().err
    assert output.startswith("worker: TAILRACE_ENGINE: ")
    assert output.count("\n") == 1
