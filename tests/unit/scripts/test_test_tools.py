"""What `make test` says when the machine lacks a tool and it cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import test_tools

ABSENT = test_tools.Tool("faketime", "tests of wrong clocks", frozenset({"faults"}), lambda: False)


def test_a_tool_that_cannot_be_installed_is_named_with_what_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-get
    assert test_tools.prepare(["faults"], [ABSENT]) == [
        "tests of wrong clocks are skipped: ask for: apt-get install faketime"
    ]


def test_only_the_tools_of_the_chosen_tiers_are_installed() -> None:
    assert test_tools.prepare(["unit"], [ABSENT]) == []
