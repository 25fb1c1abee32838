"""How long a request would wait."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import backlog
from gateway.backlog import Backlog, Lately


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
        "waiting_principals": 1,
        "request_tokens": 50,
        "drain_rate": rate,
        **more,
    }


class TestWait:
    def test_a_class_waits_for_itself_and_for_those_before_it(self) -> None:
        work = backlog.of([beat(1_000, 5_000), beat(2_000, 5_000)])
        assert work.wait_s("interactive", own=1_000) == 3_000 / 200
        assert work.wait_s("batch") == 13_000 / 200

    def test_batch_has_its_share_and_an_interactive_request_waits_for_that_too(self) -> None:
        work = backlog.of([beat(9_000, 2_000, batch_share=0.1)])
        assert work.wait_s("interactive", own=1_000) == pytest.approx((9_000 + 1_000) / 100)
        assert work.wait_s("batch") == pytest.approx(11_000 / 100)  # interactive ends before
        work = backlog.of([beat(90_000, 2_000, batch_share=0.1)])
        assert work.wait_s("interactive", own=5_000) == pytest.approx((90_000 + 2_000) / 100)
        assert work.wait_s("batch") == pytest.approx(2_000 / 0.1 / 100)

    def test_workers_with_different_shares_count_with_the_least(self) -> None:
        beats = [beat(1, batch_share=0.3), beat(1, batch_share=0.2), beat(1, batch_share=7)]
        assert backlog.of(beats).batch_share == 0.2

    def test_nothing_waits(self) -> None:
        assert backlog.of([beat()]).wait_s("interactive") == 0

    def test_where_something_waits_and_no_rate_is_known_nothing_is(self) -> None:
        assert backlog.of([]).wait_s("batch") == 0
        assert backlog.of([beat(1_000, rate=0)]).wait_s("interactive") is None

    def test_a_worker_that_nothing_waited_for_is_as_quick_as_the_others(self) -> None:
        beats = [beat(900, rate=0), beat(900, rate=90), beat(900, rate=110)]
        assert backlog.of(beats).rate == 300

    def test_where_workers_look_ahead_it_is_the_time_until_so_much_has_begun(self) -> None:
        ahead: dict[str, Any] = {"starts_every_s": 2.0, "starts_tokens": [1_000, 1_000, 1_500]}
        beats = [beat(900, **ahead), beat(300, rate=50, starts_every_s=1.0, starts_tokens=[500])]
        # After 1 s 500 + 500, after 2 s 1,000 + 550, after 4 s 1,000 + 650.
        assert backlog.of(beats).wait_s("interactive", own=1_000) == pytest.approx(
            1 + (1_200 - 1_000) / 550
        )
        again = backlog.of([*beats, beat(500, rate=0)])
        assert again.wait_s("interactive", own=1_000) == pytest.approx(1 + (1_700 - 1_500) / 825)

    @pytest.mark.parametrize("told", [None, "x", [], ["x", None, -4, True], [[1]], [5, 3]])
    def test_nonsense_of_what_begins_is_ignored(self, told: object) -> None:
        wait_s = backlog.of([beat(900, starts_every_s=1.0, starts_tokens=told)]).wait_s("batch")
        assert wait_s is not None
        assert 0 < wait_s < 20

    @pytest.mark.parametrize("state", ["loading", "draining", "failed"])
    def test_a_worker_that_takes_nothing_drains_nothing_but_its_work_is_there(
        self, state: str
    ) -> None:
        work = backlog.of([beat(1_000), beat(1_000, state=state, running=0, queued=0)])
        assert (work.rate, sum(work.waiting), work.free) == (100, 2_000, 0)

    def test_a_principal_with_few_requests_overtakes_one_with_many(self) -> None:
        work = backlog.of([beat(60_000, waiting_principals=3)])
        assert work.wait_s("interactive", own=0) == 1 * 3 * 50 / 100
        assert work.wait_s("interactive", own=3) == 4 * 3 * 50 / 100
        assert work.wait_s("interactive", own=5_000) == 600
        assert work.wait_s("batch", own=0) == 600

    def test_a_principal_waits_only_for_what_others_have(self) -> None:
        """Principals with few requests counted as if each had as many as the one that asks: it was
        told a wait that was half too long."""
        work = backlog.of([beat(800, waiting_principals=4, waiting_rounds=[4, 2, 1, 1])])
        waits = [work.wait_s("interactive", own) for own in range(5)]
        assert waits == [4 * 50 / 100, 6 * 50 / 100, 7 * 50 / 100, 8 * 50 / 100, 8]
        two = backlog.of([beat(400, waiting_rounds=[4, 2]), beat(400, waiting_rounds=[2, 2, 2])])
        waits = [two.wait_s("interactive", own) for own in (0, 1, 2, 7)]
        assert waits == [6 * 50 / 200, 8 * 50 / 200, 10 * 50 / 200, 800 / 200]

    def test_while_one_worker_does_not_tell_its_rounds_principals_count_alike(self) -> None:
        beats = [beat(60_000, waiting_principals=3), beat(0, waiting_rounds=[1])]
        assert backlog.of(beats).wait_s("interactive", own=3) == 4 * 3 * 50 / 200

    @pytest.mark.parametrize("strange", [[["x", True, -5, {}]], [7], [None]])
    def test_strange_rounds_are_none(self, strange: list[Any]) -> None:
        wait_s = backlog.of([beat(5_000, waiting_rounds=strange[0])]).wait_s("interactive", own=1)
        assert wait_s is not None
        assert 0 <= wait_s <= 50

    def test_requests_that_no_heartbeat_tells_of_yet_count(self) -> None:
        work = backlog.of([beat(1_000)])
        assert work.wait_s("interactive", own=100, lately=20) == 10 + 9.75
        free = backlog.of([beat(running=1, queued=0)])
        assert free.free == 3
        assert free.wait_s("interactive", own=5, lately=3) == 0
        assert free.wait_s("interactive", own=5, lately=7) == 1

    def test_what_may_have_started_before_a_heartbeat_tells_of_it_delays_nobody(self) -> None:
        """Interactive requests at half of the capacity, which started at once because batch
        answers made way, were told to come back later."""
        work = backlog.of([beat(batch=5_000, batch_share=0.1, drain_rate=400)])
        assert work.untold_s == backlog.BUSY_UNTOLD_S
        assert work.wait_s("interactive", lately=1) == 0
        assert work.wait_s("interactive", own=9, lately=2) == 0
        assert work.wait_s("batch", lately=2) == 5_000 / 400
        idle = backlog.of([beat()])
        assert idle.untold_s == backlog.UNTOLD_S
        assert idle.wait_s("interactive", lately=idle.free + 2) == 0

    def test_batch_has_what_interactive_requests_leave(self) -> None:
        work = backlog.of([beat(0, 2_000, interactive_rate=60, batch_share=0.1), beat()])
        assert work.wait_s("batch") == 2_000 / (200 - 60)
        assert work.wait_s("interactive") == 0
        for taken in (95, 100, 500):
            work = backlog.of([beat(0, 2_000, interactive_rate=taken, batch_share=0.1)])
            assert work.wait_s("batch") == pytest.approx(2_000 / 100 / 0.1)
        work = backlog.of([beat(0, 2_000, interactive_rate=500)])
        assert work.wait_s("batch") == pytest.approx(2_000), "late, and not never"

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
        assert backlog.of([strange]) == Backlog()


def test_requests_are_told_of_after_a_while() -> None:
    lately = Lately()
    assert lately.count("p", "interactive", 10.0) == 0
    lately.add("p", "interactive", 10.0)
    lately.add("p", "interactive", 10.4)
    lately.add("q", "interactive", 10.4)
    assert lately.count("p", "interactive", 10.5) == 2
    assert lately.count("q", "interactive", 10.5) == 1
    assert lately.count("p", "interactive", 10.2 + backlog.UNTOLD_S) == 1
    assert lately.count("p", "interactive", 10.6 + backlog.UNTOLD_S) == 0


def test_behind_frequent_heartbeats_fewer_requests_are_untold() -> None:
    lately = Lately()
    for at in (10.0, 10.3, 10.4):
        lately.add("p", "interactive", at)
    assert lately.count("p", "interactive", 10.5, backlog.BUSY_UNTOLD_S) == 2
    assert lately.count("p", "interactive", 10.5) == 3


def test_batch_requests_of_the_last_second_delay_only_batch() -> None:
    """A flood of batch requests made gateways refuse interactive ones, which go before it."""
    lately = Lately()
    lately.add("p", "batch", 10.0)
    lately.add("p", "interactive", 10.0)
    assert lately.count("p", "interactive", 10.5) == 1
    assert lately.count("p", "batch", 10.5) == 2
