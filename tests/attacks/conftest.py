"""Fixtures of the room of attacks, and its report. `tests/attacks/room.py` says how to add one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.attacks import room

TEST_DEADLINE_S = 300  # the first test also waits for the start of everything
ROWS = pytest.StashKey[list[room.Row]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Attacks share one deployment: their default deadline includes its start."""
    for item in items:
        if "attacks" in item.path.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[room.Deployment]:
    """The one deployment that all attacks are made on, with its bystander."""
    made = room.Deployment(tmp_path_factory.mktemp("attacks"))
    try:
        made.open()
        yield made
    finally:
        made.close()


@pytest.fixture
def attack(deployment: room.Deployment, request: pytest.FixtureRequest) -> room.Attacks:
    """`with attack(name, expectation):` measures what the block does to others."""
    rows = request.config.stash.setdefault(ROWS, [])

    def begun(name: str, expectation: str) -> AbstractContextManager[room.Row]:
        rows.append(room.Row(name, expectation))
        return room.measured(deployment, rows[-1])

    return begun


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line for each attack, and all of it in the report."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    room.REPORT.parent.mkdir(exist_ok=True)
    room.REPORT.write_text(json.dumps(room.as_json(rows), indent=1))
    terminalreporter.section(
        "attacks: another user's first token, median/p90/longest, idle → during"
    )
    for row in rows:
        terminalreporter.line(row.line())
    terminalreporter.line(f"figures: {room.REPORT}")
