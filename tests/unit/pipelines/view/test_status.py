"""What looks at a pipeline say."""

from __future__ import annotations

import yaml

from pipelines import definition, progress
from pipelines.counts import Counts
from pipelines.view import status
from pipelines.view.status import Look, Observations, State

PIPELINE = definition.parse(
    yaml.safe_dump(
        {
            "name": "small",
            "input": {"topic": "in"},
            "prompt": {"user": "{{ record.text }}"},
            "output": {"topic": "out"},
            "dead_letters": {"topic": "dead"},
        }
    )
)


def look(at: float, read: int, lag: int = 100) -> Look:
    counts = Counts(read=read, answered=read, input_tokens=read * 1_000, output_tokens=read * 500)
    return Look(
        at, 1_000_000 + at, progress.Progress({0: progress.Place(read, read + lag, counts)})
    )


def after(*looks: Look) -> Observations:
    seen = Observations()
    for each in looks:
        seen = seen.with_look(each)
    return seen


def test_nothing_is_said_before_the_first_look() -> None:
    members = status.members(PIPELINE, Observations(), (0.0, 0.0))
    assert (members["state"], members["progress"], members["looked_at"]) == ("unread", None, None)


def test_the_rate_is_that_of_the_window() -> None:
    looks = [look(0, 0), look(10, 500), look(38, 530), look(40, 560)]
    seen = after(*looks)
    assert seen.looks == tuple(looks[1:])
    assert seen.rate == 2.0
    assert seen.state is State.RUNNING


def test_a_pipeline_stands_only_after_a_while_without_a_row() -> None:
    assert after(look(0, 5)).state is State.MEASURING
    assert after(look(0, 5), look(3, 5)).state is State.MEASURING
    assert after(look(0, 5), look(3, 5), look(6, 5)).state is State.STANDING
    # It runs again with the first row.
    assert after(look(0, 5), look(6, 5), look(9, 6)).state is State.RUNNING


def test_done_is_done_although_the_window_has_rows() -> None:
    assert after(look(0, 5), look(3, 50, lag=0)).state is State.DONE


def test_a_failure_keeps_the_figures_and_ends_the_rate() -> None:
    seen = after(look(0, 0), look(3, 30)).with_problem(State.UNKNOWN)
    assert (seen.state, seen.rate) == (State.UNKNOWN, None)
    members = status.members(PIPELINE, seen, (0.0, 0.0))
    assert (members["looked_at"], members["progress"]["read"]) == (1_000_003, 30)
    assert members["progress"]["rows_per_s"] is None
    # The time without looks is no part of the next rate.
    again = seen.with_look(look(9, 90))
    assert (again.state, again.rate) == (State.MEASURING, None)


def test_counts_that_went_back_begin_the_window_anew() -> None:
    assert after(look(0, 500), look(3, 20)).rate is None


def test_members_add_share_and_cost() -> None:
    members = status.members(PIPELINE, after(look(0, 0), look(10, 300)), (2.0, 4.0))
    figures = members["progress"]
    assert members["name"] == "small"
    assert (figures["share"], figures["rows_per_s"], figures["eta_s"]) == (0.75, 30.0, 3.3)
    assert figures["cost"] == 300 * (1_000 * 2 + 500 * 4) / 1e6
    assert status.members(PIPELINE, after(look(0, 1)), (0.0, 0.0))["progress"]["cost"] is None


def test_a_topic_without_records_is_done() -> None:
    assert status.members(PIPELINE, after(look(0, 0, lag=0)), (0, 0))["progress"]["share"] == 1.0
