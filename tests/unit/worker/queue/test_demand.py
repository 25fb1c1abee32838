"""What requests make of what they ask for."""

from __future__ import annotations

from typing import ClassVar

import pytest

from worker.queue import demand
from worker.queue.demand import Demand


def test_while_nothing_is_known_a_request_takes_all_that_it_asks_for() -> None:
    assert Demand().estimate("alice", 700.0) == 700.0
    assert Demand().estimate("alice", 0.0) == 0.0


def test_a_new_principal_is_like_the_others_and_soon_like_itself() -> None:
    demand = Demand()
    for _ in range(50):
        demand.add("short", 100.0, 10.0)
    assert demand.estimate("new", 1_000.0) == pytest.approx(100.0)
    last = 0.0
    for count in (1, 10, 100):
        for _ in range(count):
            demand.add("long", 100.0, 100.0)
        found = demand.estimate("long", 100.0)
        assert last < found <= 100.0
        last = found
    assert last > 80.0
    assert demand.estimate("short", 100.0) < 60.0


def test_no_more_is_expected_than_was_asked_for() -> None:
    demand = Demand()
    demand.add("alice", 10.0, 90.0)
    assert demand.estimate("alice", 10.0) == 10.0


class TestDue:
    """One in thirty answers of each principal takes 600 tokens, the others 20."""

    LENGTHS: ClassVar = [600.0 if number % 30 == 15 else 20.0 for number in range(3_000)]

    def known(self) -> Demand:
        demand = Demand()
        for name in ("alice", "bob"):
            for used in self.LENGTHS[:90]:
                demand.add(name, 1_000.0, used)
        return demand

    def charged(self, known: Demand, used: float) -> float:
        """What alice is charged with now for an answer that takes so much, beyond the charge."""
        charge = known.estimate("alice", 1_000.0)
        known.add("alice", 1_000.0, used)
        return known.charge("alice", used - charge)

    def test_a_long_answer_among_short_ones_is_chance(self) -> None:
        demand = self.known()
        for used in (20.0, 600.0, 20.0, 600.0):
            assert self.charged(demand, used) == 0.0

    def test_what_is_longer_again_and_again_is_charged(self) -> None:
        demand = self.known()
        owed = [0.0]
        for _ in range(60):
            owed.append(owed[-1] + 600.0 - demand.estimate("alice", 1_000.0))
            owed[-1] -= self.charged(demand, 600.0)
        assert owed[2] > 1_000.0, "all of the first ones"
        assert owed[60] < 12 * 600.0
        assert owed[60] - owed[50] < 0.1 * 10 * 600.0, "nearly all of the last ones is charged"

    def test_what_is_shorter_again_and_again_is_given_back(self) -> None:
        demand = self.known()
        found = [self.charged(demand, 1.0) for _ in range(300)]
        assert found[0] == 0.0
        assert sum(found) < 0.0

    def test_in_the_long_run_it_is_charged_with_what_it_takes(self) -> None:
        demand, charged = self.known(), 0.0
        for used in self.LENGTHS:
            charged += demand.estimate("alice", 1_000.0)
            charged += self.charged(demand, used)
            demand.measure(1.0)
        assert charged == pytest.approx(sum(self.LENGTHS), rel=0.05)

    def test_while_all_answers_are_alike_every_difference_is_charged(self) -> None:
        demand = Demand()
        for _ in range(50):
            demand.add("alice", 100.0, 20.0)
        assert demand.charge("alice", -80.0) == -80.0
        assert demand.charge("bob", 7.0) == 7.0, "of one that is not remembered, too"

    def test_what_is_owed_is_forgotten(self) -> None:
        """Chance allows some long answers more when the former ones are long ago."""
        free = []
        for seconds in (0.0, demand.PART_MEMORY_S / 3):
            known, number = self.known(), 0
            while not self.charged(known, 600.0) and number < 100:
                known.measure(seconds)
                number += 1
            free.append(number)
        assert free[1] > free[0] > 0


def test_what_a_principal_was_like_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Demand()
    for _ in range(1_000):
        known.add("short", 100.0, 10.0)
        known.add("long", 100.0, 90.0)
    assert known.estimate("short", 100.0) < 20.0
    for _ in range(20):
        known.measure(200.0)
    known.add("other", 100.0, 50.0)
    assert known.estimate("short", 100.0) == pytest.approx(50.0, abs=1.0)
    monkeypatch.setattr(demand, "MAX_PRINCIPALS", 2)
    for name in ("short", "a", "short", "b"):
        for _ in range(100):
            known.add(name, 100.0, 10.0 if name == "short" else 90.0)
    of_all = known.estimate("new", 100.0)
    assert known.estimate("short", 100.0) < of_all < known.estimate("b", 100.0)
    assert known.estimate("a", 100.0) == of_all, "whose last request ended first"
