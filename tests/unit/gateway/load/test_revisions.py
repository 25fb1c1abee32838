"""Which revision a request goes to, and when the newest one is worse."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.load import revisions
from gateway.load.revisions import Record, Revision
from tailrace.settings.shapes import CanaryBounds, Pool
from tests.support import cases

NEW = Revision("new", 10.0, frozenset({4, 5}))
OLD = Revision("old", 900.0, frozenset({0, 1, 2}))
OLDER = Revision("older", 1_000.0, frozenset({3}))
POOL = Pool("a", ("m",), 1000, 100, canary=10.0, canary_bounds=CanaryBounds(least=4))


def beat(rev: str, age_s: float, *partitions: int, **more: Any) -> dict[str, Any]:
    figures = {"state": "ready", "model_rev": rev, "age_s": age_s, "partitions": list(partitions)}
    return {**figures, **more}


def test_revisions_are_those_of_ready_workers_with_partitions_the_newest_first() -> None:
    beats = [
        beat("old", 5.0, 2),
        beat("old", 900.0, 0, 1),
        beat("new", 10.0, 4, 5),
        beat("idle", 1.0),
        beat("loading", 1.0, 6, state="loading"),
        beat("", 1.0, 7),
        {"state": "ready", "partitions": [8]},  # an older version's worker
    ]
    assert revisions.from_heartbeats(beats) == [NEW, OLD]


def test_the_newest_gets_its_percentage_and_the_others_the_rest_by_their_partitions() -> None:
    parts = revisions.shares(10.0, [NEW, OLD, OLDER], ())
    assert parts == pytest.approx({"new": 0.1, "old": 0.675, "older": 0.225})
    assert list(parts) == ["new", "old", "older"]


def test_weights_by_name_are_shared_among_those_that_are_there() -> None:
    assert revisions.shares({"new": 1, "old": 3, "gone": 6}, [NEW, OLD, OLDER], ()) == {
        "new": 0.25,
        "old": 0.75,
        "older": 0.0,
    }


def test_one_that_is_out_gets_nothing_and_the_others_all() -> None:
    assert revisions.shares(10.0, [NEW, OLD], ["new"]) == {"new": 0.0, "old": 1.0}
    assert revisions.shares(100.0, [NEW, OLD], ["new"]) == {"new": 0.0, "old": 0.0}
    assert revisions.shares({"new": 1}, [NEW, OLD], ["new"]) == {"new": 0.0, "old": 0.0}


def test_a_revision_alone_gets_all() -> None:
    assert revisions.shares(0.0, [OLD], ()) == {"old": 1.0}
    assert revisions.shares(10.0, [], ()) == {}


def test_points_fall_to_revisions_by_their_parts() -> None:
    parts = revisions.shares(10.0, [NEW, OLD], ())
    questions = [[{"role": "user", "content": str(n)}] for n in range(2_000)]
    picks = [revisions.pick(parts, revisions.point_of("alice", each)) for each in questions]
    assert 140 < picks.count("new") < 260
    assert revisions.pick({"new": 0.0, "old": 0.0}, 0.5) is None
    assert revisions.pick({"new": 0.0, "old": 1.0}, 1 - 1e-12) == "old"


def test_more_for_the_newest_moves_none_of_its_conversations_away() -> None:
    points = [n / 1_000 for n in range(1_000)]
    few, more = (
        {p for p in points if revisions.pick(revisions.shares(c, [NEW, OLD], ()), p) == "new"}
        for c in (10.0, 20.0)
    )
    assert few < more


def test_a_conversation_keeps_its_point_and_principals_have_their_own() -> None:
    first = {"role": "user", "content": "hi"}
    later = [{"role": "system", "content": "brief"}, first, {"role": "user", "content": "more"}]
    point = revisions.point_of("alice", [first])
    assert revisions.point_of("alice", later) == point
    assert revisions.point_of("bob", [first]) != point
    assert 0 <= revisions.point_of("alice", [{"role": "system", "content": "x"}]) < 1


def record(failed: str = "", first: tuple[float, ...] = ()) -> Record:
    """`failed`: an x for each response that failed, a dot for one that did not."""
    outcomes = Record()
    for each in failed:
        outcomes.add_outcome(100.0, failed=each == "x")
    for seconds in first:
        outcomes.add_first_token(100.0, seconds)
    return outcomes


@cases.each(
    ("newest", "others", "reason"),
    [
        (record("x..."), record("...."), "errors"),
        (record("x..."), record("x..."), ""),
        (record("xxx"), record("...."), ""),  # too few
        (record("xxxx"), record("..."), ""),  # too few to compare with
        (record(first=(0.5,) * 4), record(first=(0.2,) * 4), "first_token"),
        (record(first=(0.4,) * 4), record(first=(0.2,) * 4), ""),
        (record(first=(0.1,) * 4), record(first=(0.01,) * 4), ""),  # both are fast
        (record(first=(0.2, 0.2, 0.2, 9.0)), record(first=(0.2,) * 4), ""),  # one was slow
        (record("x...", (0.5,) * 4), record("....", (0.2,) * 4), "errors"),
    ],
)
def test_the_newest_is_worse_by_more_than_the_bounds(
    newest: Record, others: Record, reason: str
) -> None:
    assert revisions.worse(POOL, newest, [others], 100.0) == reason


def test_what_is_long_ago_does_not_count() -> None:
    later = 100.0 + revisions.WINDOW_S
    assert revisions.worse(POOL, record("xxxx"), [record("....")], later) == ""


def test_a_judgement_holds_for_the_members_by_which_it_was_made() -> None:
    other = Pool("a", ("m",), 1000, 100, canary=20.0, canary_bounds=POOL.canary_bounds)
    assert revisions.terms(POOL) != revisions.terms(other)
    assert revisions.terms(POOL) == revisions.terms(
        Pool("b", ("n",), 9, 9, canary=10.0, canary_bounds=CanaryBounds(least=4))
    )
