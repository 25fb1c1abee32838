"""How long a request would wait."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.load import backlog
from gateway.load.backlog import Placements
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
    """What a worker says of how long requests would wait: interactive, batch."""
    return {
        "waits_s": [*others],
        "waits_of": [waits_of(principal) for principal in of],
        "interactive_waits_s": [interactive for interactive, _ in of.values()],
        "batch_waits_s": [batch for _, batch in of.values()],
    }


def placements_of(**whose: list[str]) -> Placements:
    """Interactive requests that were placed just now, by worker."""
    placements = Placements()
    for incarnation, principals in whose.items():
        for principal in principals:
            placements.add(incarnation, principal, 0)
    return placements


class TestWait:
    def test_each_principal_has_a_wait_of_its_own(self) -> None:
        work = backlog.from_heartbeats(
            [beat(1_000, 5_000, **waits((1.5, 30.0), alice=(4.0, 50.0)))]
        )
        assert work.wait_s("interactive", "alice") == 4.0
        assert work.wait_s("batch", "alice") == 50.0
        assert work.wait_s("interactive", "carol") == 1.5
        assert work.wait_s("batch", "carol") == 30.0

    def test_another_principal_of_a_known_tenant_waits_for_its_tenants_turn(self) -> None:
        crowd = {"issuer|acme": (9.0, 9.0)}
        work = backlog.from_heartbeats([beat(1_000, **waits((1.5, 30.0), **crowd))])
        assert work.wait_s("interactive", "issuer|acme|new") == 9.0
        assert work.wait_s("interactive", "issuer|other|new") == 1.5

    def test_a_request_waits_where_it_begins_first(self) -> None:
        work = backlog.from_heartbeats(
            [
                beat(1_000, **waits((2.0, 9.0), alice=(8.0, 9.0))),
                beat(1_000, **waits((3.0, 7.0), bob=(5.0, 7.0))),
            ]
        )
        assert work.wait_s("interactive", "alice") == 3.0
        assert work.wait_s("interactive", "bob") == 2.0
        assert work.wait_s("batch", "") == 7.0

    def test_a_request_of_a_fixed_partition_waits_where_that_is(self) -> None:
        work = backlog.from_heartbeats(
            [
                beat(1_000, partitions=[0, 1], **waits((2.0, 9.0))),
                beat(1_000, partitions=[2, "3"], **waits((6.0, 7.0))),
            ]
        )
        actual = [work.wait_s("interactive", "", partition) for partition in (None, 0, 2, 7)]
        assert actual == [2.0, 2.0, 6.0, 2.0], "no worker has 7"

    def test_a_worker_that_says_only_its_backlog_waits_for_all_of_it(self) -> None:
        work = backlog.from_heartbeats([beat(1_000, 5_000)])
        assert work.wait_s("interactive", "alice") == 1_000 / 100
        assert work.wait_s("batch", "alice") == 6_000 / 100

    def test_nothing_waits(self) -> None:
        assert backlog.from_heartbeats([]).wait_s("batch", "") == 0
        assert backlog.from_heartbeats([beat()]).wait_s("interactive", "") == 0
        assert backlog.from_heartbeats([beat(**waits((0.0, 0.0)))]).wait_s("interactive", "") == 0

    def test_an_unknown_rate_gives_no_estimate(self) -> None:
        unknown = waits((0.0, 0.0)) | {"waits_s": []}
        assert (
            backlog.from_heartbeats([beat(1_000, rate=0, **unknown)]).wait_s("interactive", "")
            is None
        )

    def test_a_worker_that_nothing_waited_for_is_as_quick_as_the_others(self) -> None:
        work = backlog.from_heartbeats(
            [beat(900, rate=0), beat(1_900, rate=90), beat(1_900, rate=110)]
        )
        assert work.rate == 300
        assert work.wait_s("interactive", "") == 9.0

    @pytest.mark.parametrize("value", [None, "x", [], ["x", None, -4, True], [[1]], [{}, 3]])
    @pytest.mark.parametrize(
        "figure", ["waits_s", "waits_of", "interactive_waits_s", "batch_waits_s", "partitions"]
    )
    def test_nonsense_is_no_wait(self, figure: str, value: object) -> None:
        beats = [beat(900, **{**waits((5.0, 5.0), alice=(5.0, 5.0)), figure: value})]
        for priority in topics.CLASSES:
            assert 0 <= (backlog.from_heartbeats(beats).wait_s(priority, "alice") or 0.0) <= 9

    @pytest.mark.parametrize("state", ["loading", "draining", "failed"])
    def test_a_worker_that_takes_nothing_drains_nothing_but_its_work_is_there(
        self, state: str
    ) -> None:
        away = beat(1_000, state=state, running=0, queued=0, **waits((1.0, 1.0)))
        work = backlog.from_heartbeats([beat(1_000, **waits((6.0, 7.0))), away])
        assert (work.rate, sum(work.waiting)) == (100, 2_000)
        assert work.wait_s("interactive", "") == 6.0
        assert backlog.from_heartbeats([away]).wait_s("interactive", "") is None

    @pytest.mark.parametrize(
        "strange",
        [
            {"waiting_tokens": None, "drain_rate": "x"},
            {"waiting_tokens": ["x", True], "drain_rate": True},
            {"state": "loading"},
            {},
        ],
    )
    def test_what_no_worker_says_is_not_known(self, strange: dict[str, Any]) -> None:
        work = backlog.from_heartbeats([strange])
        assert work.wait_s("batch", "") == 0
        assert (work.running, work.rate, work.each, work.busy) == (0.0, 0.0, 0.0, False)


class TestPlacements:
    """Each request holds a place for half a second."""

    def test_what_a_principal_has_just_placed_goes_before_its_next_request(self) -> None:
        placements = placements_of(a=["alice"] * 20)
        work = backlog.from_heartbeats(
            [beat(1_000, incarnation="a", **waits((10.0, 20.0)))], placements
        )
        assert work.wait_s("interactive", "alice") == 10 + 20 / 2 - backlog.BUSY_UNCOUNTED_S
        assert work.wait_s("batch", "alice") == 20 + 20 / 2 - backlog.BUSY_UNCOUNTED_S

    def test_a_light_principal_waits_for_one_request_of_a_heavy_one(self) -> None:
        placements = placements_of(a=["heavy"] * 1_000)
        work = backlog.from_heartbeats(
            [beat(1_000, incarnation="a", **waits((1.0, 9.0)))], placements
        )
        assert work.wait_s("interactive", "light") == 1.0 + 0.5 - backlog.BUSY_UNCOUNTED_S

    def test_batch_goes_before_no_interactive_request(self) -> None:
        placements = Placements()
        placements.add("a", "alice", 1)
        assert placements.turns("a", "alice", 0) == placements.number("a", 0) == 0
        assert placements.turns("a", "alice", 1) == placements.number("a", 1) == 1

    def test_they_take_the_places_that_are_free(self) -> None:
        figures = {"running": 3, "queued": 0, **waits((0.0, 0.0))}
        for count, wait_s in ((0, 0.0), (1, 0.0), (3, 0.0), (5, 1.0)):
            placements = placements_of(a=["alice"] * count, b=["alice"] * count)
            work = backlog.from_heartbeats(
                [beat(incarnation=name, **figures) for name in "ab"], placements
            )
            assert work.wait_s("interactive", "alice") == wait_s

    def test_heartbeats_count_them_after_two_refreshes(self) -> None:
        placements = placements_of(a=["alice", "bob", "bob"])
        for number, turns in ((3, 2), (3, 2), (0, 0)):
            assert placements.number("a", 0) == number
            assert placements.turns("a", "alice", 0) == turns
            assert placements.number("b", 0) == 0
            placements.refresh()

    def test_what_is_not_written_is_taken_out(self) -> None:
        placements = placements_of(a=["alice", "alice"])
        placements.refresh()
        placements.add("a", "alice", 0)
        for number in (2, 1, 0, 0):
            placements.remove("a", "alice", 0)
            assert placements.number("a", 0) == placements.turns("a", "alice", 0) == number
