"""Fixtures of the room of attacks, and its report. `tests/attacks/room.py` says how to add one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from tests.attacks import room

TEST_DEADLINE_S = 300  # the first test also waits for the start of everything
# One of each kind is in `make test`; all of them are in `make attacks`, and what is not here in
# `make nightly`.
EVERY_RUN = {
    "test_every_forged_credential_is_refused_and_told_the_same",
    "test_no_header_makes_a_service_call_anybody",
    "test_a_head_without_an_end_is_cut",
    "test_a_foreign_origin_is_refused_before_the_socket_is_open",
    "test_a_response_of_somebody_else_is_as_unknown_as_an_unknown_one",
    "test_a_file_of_somebody_else_is_as_unknown_as_an_unknown_one",
    "test_a_ticket_works_once",
    "test_a_key_that_stands_for_another_request_is_refused",
    "test_absurd_parameters_are_refused_and_internal_ones_mean_nothing",
    "test_no_log_and_no_metric_holds_a_prompt_an_answer_or_a_credential",
    "test_no_forged_record_moves_a_response",
    "test_no_forged_request_runs",
    "test_no_forged_revocation_shuts_anybody_out",
    "test_what_is_open_for_a_revoked_user_ends_everywhere",
    "test_redis_decides_nothing",
    "test_an_attack_that_does_nothing_is_measured",
}
ROWS = pytest.StashKey[list[room.Row]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Attacks share one deployment: their default deadline includes its start."""
    for item in items:
        if "attacks" not in item.path.parts:
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_S))
        if item.name.partition("[")[0] not in EVERY_RUN:
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="package")
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
