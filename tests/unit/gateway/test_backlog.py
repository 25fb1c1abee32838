"""How long a request would wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gateway import backlog
from gateway.backlog import Backlog, Lately
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


class TestWait:
    def test_each_principal_has_a_wait_of_its_own(self) -> None:
        told = waits((1.5, 30.0), alice=(4.0, 50.0), bob=(9.0, 60.0))
        work = backlog.of([beat(1_000, 5_000, **told)])
        assert work.wait_s("interactive", "alice") == 4.0
        assert work.wait_s("batch", "bob") == 60.0
        assert work.wait_s("interactive", "carol") == 1.5
        assert work.wait_s("batch") == 30.0

    def test_a_request_waits_where_it_begins_first(self) -> None:
        work = backlog.of(
            [
                beat(1_000, **waits((2.0, 9.0), alice=(8.0, 9.0))),
                beat(1_000, **waits((3.0, 7.0), bob=(5.0, 7.0))),
            ]
        )
        assert work.wait_s("interactive", "alice") == 3.0
        assert work.wait_s("interactive", "bob") == 2.0
        assert work.wait_s("batch") == 7.0

    def test_a_worker_of_an_older_version_tells_only_its_backlog(self) -> None:
        work = backlog.of([beat(1_000, 5_000), beat(2_000, 5_000)])
        assert work.wait_s("interactive", "alice") == 3_000 / 200
        assert work.wait_s("batch") == 13_000 / 200
        work = backlog.of([beat(1_000, 5_000), beat(2_000, 5_000, **waits((9.0, 9.0)))])
        assert work.wait_s("interactive", "alice") == 9.0

    def test_nothing_waits(self) -> None:
        assert backlog.of([beat()]).wait_s("interactive") == 0
        assert backlog.of([beat(**waits((0.0, 0.0)))]).wait_s("interactive") == 0

    def test_where_something_waits_and_no_rate_is_known_nothing_is(self) -> None:
        assert backlog.of([]).wait_s("batch") == 0
        silent: dict[str, Any] = {
            "waits_s": [],
            "waits_of": [],
            "interactive_waits_s": [],
            "batch_waits_s": [],
        }
        assert backlog.of([beat(1_000, rate=0, **silent)]).wait_s("interactive") is None

    def test_a_worker_that_nothing_waited_for_is_as_quick_as_the_others(self) -> None:
        beats = [beat(900, rate=0), beat(900, rate=90), beat(900, rate=110)]
        assert backlog.of(beats).rate == 300

    @pytest.mark.parametrize("told", [None, "x", [], ["x", None, -4, True], [[1]], [{}, 3]])
    @pytest.mark.parametrize(
        "figure", ["waits_s", "waits_of", "interactive_waits_s", "batch_waits_s"]
    )
    def test_nonsense_is_no_wait(self, figure: str, told: object) -> None:
        beats = [beat(900, **{**waits((5.0, 5.0), alice=(5.0, 5.0)), figure: told})]
        for priority in topics.CLASSES:
            assert 0 <= (backlog.of(beats).wait_s(priority, "alice") or 0.0) <= 9

    @pytest.mark.parametrize("state", ["loading", "draining", "failed"])
    def test_a_worker_that_takes_nothing_drains_nothing_but_its_work_is_there(
        self, state: str
    ) -> None:
        away = beat(1_000, state=state, running=0, queued=0, **waits((1.0, 1.0)))
        work = backlog.of([beat(1_000, **waits((6.0, 7.0))), away])
        assert (work.rate, sum(work.waiting), work.free) == (100, 2_000, 0)
        assert work.wait_s("interactive") == 6.0

    def test_requests_that_no_heartbeat_tells_of_yet_count(self) -> None:
        work = backlog.of([beat(1_000, **waits((10.0, 10.0)))])
        assert work.wait_s("interactive", lately=20) == 10 + 9.75
        free = backlog.of([beat(running=1, queued=0, **waits((0.0, 0.0)))])
        assert free.free == 3
        assert free.wait_s("interactive", lately=3) == 0
        assert free.wait_s("interactive", lately=7) == 1

    def test_what_may_have_started_before_a_heartbeat_tells_of_it_delays_no_one(self) -> None:
        """Interactive requests at half of the capacity, which started at once because batch
        answers made way, were told to come back later."""
        work = backlog.of([beat(batch=5_000, drain_rate=400, **waits((0.0, 12.5)))])
        assert work.untold_s == backlog.BUSY_UNTOLD_S
        assert work.wait_s("interactive", lately=2) == 0
        assert work.wait_s("batch", lately=2) == 12.5
        idle = backlog.of([beat()])
        assert idle.untold_s == backlog.UNTOLD_S
        assert idle.wait_s("interactive", lately=idle.free + 2) == 0

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
        assert backlog.of([strange]).wait_s("batch") == 0
        assert dataclasses.replace(backlog.of([strange]), ready=()) == Backlog()


def test_requests_are_told_of_after_a_while() -> None:
    lately = Lately()
    assert lately.count("p", "interactive", "alice", 10.0) == 0
    lately.add("p", "interactive", "alice", 10.0)
    lately.add("p", "interactive", "alice", 10.4)
    lately.add("q", "interactive", "alice", 10.4)
    assert lately.count("p", "interactive", "alice", 10.5) == 2
    assert lately.count("q", "interactive", "alice", 10.5) == 1
    assert lately.count("p", "interactive", "alice", 10.2 + backlog.UNTOLD_S) == 1
    assert lately.count("p", "interactive", "alice", 10.6 + backlog.UNTOLD_S) == 0


def test_behind_frequent_heartbeats_fewer_requests_are_untold() -> None:
    lately = Lately()
    for at in (10.0, 10.3, 10.4):
        lately.add("p", "interactive", "alice", at)
    assert lately.count("p", "interactive", "alice", 10.5, backlog.BUSY_UNTOLD_S) == 2
    assert lately.count("p", "interactive", "alice", 10.5) == 3


def test_one_request_of_each_other_principal_goes_first() -> None:
    lately = Lately()
    for at in range(8):
        lately.add("p", "interactive", "flood", 10 + at / 100)
    lately.add("p", "interactive", "alice", 10.3)
    assert lately.count("p", "interactive", "alice", 10.5) == 2
    assert lately.count("p", "interactive", "flood", 10.5) == 9
    assert lately.count("p", "interactive", "bob", 10.5) == 2


def test_batch_requests_of_the_last_second_delay_only_batch() -> None:
    """A flood of batch requests made gateways refuse interactive ones, which go before it."""
    lately = Lately()
    lately.add("p", "batch", "alice", 10.0)
    lately.add("p", "interactive", "alice", 10.0)
    assert lately.count("p", "interactive", "alice", 10.5) == 1
    assert lately.count("p", "batch", "alice", 10.5) == 2
