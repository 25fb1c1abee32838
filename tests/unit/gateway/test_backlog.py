"""How long a request would wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway import backlog
from gateway.backlog import Backlog, Lately, NewRequest
from tailrace.fair_queue import waits_of
from tailrace.protocol import topics


def beat(
    interactive: float = 0, batch: float = 0, rate: float = 100, **more: Any
) -> dict[str, Any]:
    return {
        "state": "ready",
        "capacity": 4,
        "running": 4,
        "queued": 9,
        "running_tokens": 200,
        "waiting_tokens": [interactive, batch],
        "request_tokens": 50,
        "drain_rate": rate,
        **more,
    }


def waits(others: tuple[float, float], **of: tuple[float, float]) -> dict[str, Any]:
    """A worker that tells how long requests would wait: interactive, batch."""
    return {
        "waits_s": [*others],
        "waits_of": [waits_of(principal) for principal in of],
        "interactive_waits_s": [interactive for interactive, _ in of.values()],
        "batch_waits_s": [batch for _, batch in of.values()],
    }


NOW = 10.0


def placed(**whose: list[str]) -> Lately:
    """Interactive requests that were placed just now, by worker."""
    lately = Lately()
    for incarnation, principals in whose.items():
        for principal in principals:
            lately.add(incarnation, principal, "interactive", NOW)
    return lately


class TestWait:
    def test_each_principal_has_a_wait_of_its_own(self) -> None:
        told = waits((1.5, 30.0), alice=(4.0, 50.0), bob=(9.0, 60.0))
        work, passed = backlog.of([beat(1_000, 5_000, **told)]), backlog.BUSY_UNTOLD_S
        assert work.wait_s(NewRequest("interactive", "alice")) == 4.0 - passed
        assert work.wait_s(NewRequest("batch", "bob")) == 60.0 - passed
        assert work.wait_s(NewRequest("interactive", "carol")) == 1.5
        assert work.wait_s(NewRequest("batch")) == 30.0

    def test_a_turn_is_nearer_by_how_old_the_heartbeat_is(self) -> None:
        """But that of one who has not asked before, who begins behind what begins now."""
        told = waits((0.1, 30.0), alice=(0.1, 50.0))
        work = backlog.of([beat(1_000, 5_000, **told)])
        assert work.wait_s(NewRequest("interactive", "alice")) == 0.0
        assert work.wait_s(NewRequest("interactive", "carol")) == 0.1
        alice = NewRequest("batch", "alice")
        assert work.wait_at(work.ready[0], alice, crowd=True) == 50.0, "workers are compared"

    def test_a_request_waits_where_it_begins_first(self) -> None:
        work = backlog.of(
            [
                beat(1_000, **waits((2.0, 9.0), alice=(8.0, 9.0))),
                beat(1_000, **waits((3.0, 7.0), bob=(5.0, 7.0))),
            ]
        )
        assert work.wait_s(NewRequest("interactive", "alice")) == 3.0
        assert work.wait_s(NewRequest("interactive", "bob")) == 2.0
        assert work.wait_s(NewRequest("batch")) == 7.0

    def test_a_worker_of_an_older_version_tells_only_its_backlog(self) -> None:
        work = backlog.of([beat(1_000, 5_000), beat(2_000, 5_000)])
        assert work.wait_s(NewRequest("interactive", "alice")) == 3_000 / 200
        assert work.wait_s(NewRequest("batch")) == 13_000 / 200
        work = backlog.of([beat(1_000, 5_000), beat(2_000, 5_000, **waits((9.0, 9.0)))])
        assert work.wait_s(NewRequest("interactive", "alice")) == 9.0

    def test_nothing_waits(self) -> None:
        assert backlog.of([beat()]).wait_s(NewRequest("interactive")) == 0
        assert backlog.of([beat(**waits((0.0, 0.0)))]).wait_s(NewRequest("interactive")) == 0

    def test_where_something_waits_and_no_rate_is_known_nothing_is(self) -> None:
        assert backlog.of([]).wait_s(NewRequest("batch")) == 0
        silent: dict[str, Any] = {
            "waits_s": [],
            "waits_of": [],
            "interactive_waits_s": [],
            "batch_waits_s": [],
        }
        assert backlog.of([beat(1_000, rate=0, **silent)]).wait_s(NewRequest("interactive")) is None

    def test_a_worker_that_nothing_waited_for_is_as_quick_as_the_others(self) -> None:
        beats = [beat(900, rate=0), beat(900, rate=90), beat(900, rate=110)]
        assert backlog.of(beats).rate == 300

    @pytest.mark.parametrize("told", [None, "x", [], ["x", None, -4, True], [[1]], [{}, 3]])
    @pytest.mark.parametrize(
        "figure",
        [
            *("waits_s", "waits_of", "interactive_waits_s", "batch_waits_s"),
            *("next_s", "interactive_next_s", "batch_next_s"),
        ],
    )
    def test_nonsense_is_no_wait(self, figure: str, told: object) -> None:
        beats = [beat(900, **{**waits((5.0, 5.0), alice=(5.0, 5.0)), figure: told})]
        for priority in topics.CLASSES:
            assert 0 <= (backlog.of(beats).wait_s(NewRequest(priority, "alice")) or 0.0) <= 9

    @pytest.mark.parametrize("state", ["loading", "draining", "failed"])
    def test_a_worker_that_takes_nothing_drains_nothing_but_its_work_is_there(
        self, state: str
    ) -> None:
        away = beat(1_000, state=state, running=0, queued=0, **waits((1.0, 1.0)))
        work = backlog.of([beat(1_000, **waits((6.0, 7.0))), away])
        assert (work.rate, sum(work.waiting)) == (100, 2_000)
        assert work.wait_s(NewRequest("interactive")) == 6.0

    def test_what_a_principal_has_just_asked_for_goes_before_its_next_request(self) -> None:
        told = waits((10.0, 10.0), alice=(10.0, 20.0)) | {
            "interactive_next_s": [4.0],
            "batch_next_s": [7.0],
            "next_s": [3.0, 3.0],
        }
        work = backlog.of([beat(1_000, incarnation="a", **told)])
        lately = placed(a=["alice", "alice", "bob"])
        passed = backlog.BUSY_UNTOLD_S
        assert work.wait_s(NewRequest("interactive", "alice", lately, NOW)) == 10 + 2 * 4 - passed
        assert work.wait_s(NewRequest("batch", "alice", lately, NOW)) == 20 + 2 * 7 - passed
        assert work.wait_s(NewRequest("interactive", "bob", lately, NOW)) == 10 + 3 - passed
        assert work.wait_s(NewRequest("interactive", "carol", lately, NOW)) == 10.0
        old = {name: each for name, each in told.items() if "next" not in name}
        work = backlog.of([beat(1_000, incarnation="a", **old)])
        assert work.wait_s(NewRequest("interactive", "alice", lately, NOW)) == 10 + 1 - passed

    def test_not_all_go_to_the_worker_that_told_the_shorter_wait(self) -> None:
        """What others have asked for is expected, and no part of the wait; but it was placed."""
        beats = [
            beat(1_000, incarnation=name, **waits((seconds, 9.0)))
            for name, seconds in (("a", 5.0), ("b", 5.2))
        ]
        work, lately = backlog.of(beats), placed(a=["alice", "bob", "carol"])
        new = NewRequest("interactive", "dave", lately, NOW)
        assert work.wait_s(new) == 5.0
        shorter, longer = (work.wait_at(each, new, crowd=True) for each in reversed(beats))
        assert (shorter, longer) == (5.2, 5.0 + 1.5 - backlog.BUSY_UNTOLD_S)

    def test_a_request_of_a_fixed_partition_waits_where_that_is(self) -> None:
        """It was told the shortest wait of all workers."""
        work = backlog.of(
            [
                beat(1_000, partitions=[0, 1], **waits((2.0, 9.0))),
                beat(1_000, partitions=[2, "3"], **waits((6.0, 7.0))),
            ]
        )
        new = NewRequest("interactive", "alice")
        assert [work.wait_s(new, partition) for partition in (None, 0, 2)] == [2.0, 2.0, 6.0]
        assert work.wait_s(new, 7) == 2.0, "while no worker has it"

    def test_requests_that_no_heartbeat_tells_of_yet_take_what_is_free(self) -> None:
        """Each worker tells that one place is free."""
        told = {"running": 3, "queued": 0, **waits((0.0, 0.0))}
        work = backlog.of([beat(incarnation=name, **told) for name in "ab"])
        for count, wait_s in ((0, 0.0), (1, 0.0), (2, 0.0), (4, 0.5), (6, 1.5)):
            lately = placed(a=["alice"] * count, b=["alice"] * count)
            assert work.wait_s(NewRequest("interactive", "alice", lately, NOW)) == wait_s
            assert work.wait_s(NewRequest("interactive", "bob", lately, NOW)) == 0.0

    def test_what_may_have_started_before_a_heartbeat_tells_of_it_delays_no_one(self) -> None:
        """Interactive requests at half of the capacity, which started at once because batch
        answers made way, were told to come back later."""
        told = waits((0.0, 12.5))
        work = backlog.of([beat(batch=5_000, incarnation="a", drain_rate=400, **told)])
        assert work.untold_s == backlog.BUSY_UNTOLD_S
        lately = placed(a=["alice"] * 2)
        assert work.wait_s(NewRequest("interactive", "alice", lately, NOW)) == 0
        assert work.wait_s(NewRequest("batch", "alice", lately, NOW)) == 12.5
        assert backlog.of([beat()]).untold_s == backlog.UNTOLD_S

    @pytest.mark.parametrize(
        "strange",
        [
            {"waiting_tokens": None, "drain_rate": "x"},
            {"waiting_tokens": ["x", True, 5], "drain_rate": True},
            {"state": "loading"},
            {},
        ],
    )
    def test_what_no_worker_says_is_not_known(self, strange: dict[str, Any]) -> None:
        assert backlog.of([strange]).wait_s(NewRequest("batch")) == 0
        assert dataclasses.replace(backlog.of([strange]), ready=()) == Backlog()


def ahead(
    lately: Lately, whose: str, now: float, within_s: float = backlog.UNTOLD_S, rank: int = 0
) -> backlog.Untold:
    return lately.ahead("a", whose, rank, now, within_s)


def test_requests_are_told_of_after_a_while() -> None:
    lately = Lately()
    assert ahead(lately, "alice", 10.0) == backlog.Untold(0, 0, 0)
    for at in (10.0, 10.4):
        lately.add("a", "alice", "interactive", at)
    lately.add("b", "alice", "interactive", 10.4)
    assert ahead(lately, "alice", 10.5) == backlog.Untold(2, 0, 2)
    assert ahead(lately, "bob", 10.5) == backlog.Untold(0, 1, 2)
    assert lately.ahead("b", "alice", 0, 10.5, backlog.UNTOLD_S).own == 1
    assert ahead(lately, "alice", 10.2 + backlog.UNTOLD_S).own == 1
    assert ahead(lately, "alice", 10.6 + backlog.UNTOLD_S).own == 0
    assert "a" not in lately._placed


def test_behind_frequent_heartbeats_fewer_requests_are_untold() -> None:
    lately = Lately()
    for at in (10.0, 10.3, 10.4):
        lately.add("a", "alice", "interactive", at)
    assert ahead(lately, "alice", 10.5, backlog.BUSY_UNTOLD_S).own == 2
    assert ahead(lately, "alice", 10.5).own == 3


def test_one_request_of_each_other_principal_goes_first() -> None:
    lately = Lately()
    for at in range(8):
        lately.add("a", "flood", "interactive", 10 + at / 100)
    lately.add("a", "alice", "interactive", 10.3)
    assert ahead(lately, "alice", 10.5) == backlog.Untold(1, 1, 9)
    assert ahead(lately, "flood", 10.5) == backlog.Untold(8, 1, 9)
    assert ahead(lately, "bob", 10.5) == backlog.Untold(0, 2, 9)


def test_batch_requests_of_the_last_second_delay_only_batch() -> None:
    """A flood of batch requests made gateways refuse interactive ones, which go before it."""
    lately = Lately()
    lately.add("a", "alice", "batch", 10.0)
    lately.add("a", "alice", "interactive", 10.0)
    assert ahead(lately, "alice", 10.5).own == 1
    assert ahead(lately, "alice", 10.5, rank=1).own == 2


def test_what_is_not_asked_after_all_does_not_count() -> None:
    """What was refused made the next request of its principal wait longer."""
    lately = Lately()
    for at, whose in ((10.0, "alice"), (10.1, "bob"), (10.2, "alice")):
        lately.add("a", whose, "interactive", at)
    lately.remove("a", "alice", "interactive")
    lately.remove("a", "alice", "batch")
    lately.remove("b", "alice", "interactive")
    assert ahead(lately, "alice", 10.3) == backlog.Untold(1, 1, 2)
    assert ahead(lately, "alice", 10.3, 0.2).own == 0, "the last one"
