"""What requests make of what they ask for, and how fast they come."""

from __future__ import annotations

import random
from typing import ClassVar

import pytest

from tailrace.fair_queue import waits_of
from worker import demand
from worker.demand import Demand


def test_while_nothing_is_known_a_request_takes_all_that_it_asks_for() -> None:
    assert Demand().expected("alice", 700.0) == 700.0
    assert Demand().expected("alice", 0.0) == 0.0


def test_a_new_principal_is_like_the_others_and_soon_like_itself() -> None:
    known = Demand()
    known.came("short", 0, 1.0)
    for _ in range(50):
        known.ended("short", 100.0, 10.0)
    assert known.expected("new", 1_000.0) == pytest.approx(100.0)
    known.came("long", 0, 1.0)
    last = 0.0
    for count in (1, 10, 100):
        for _ in range(count):
            known.ended("long", 100.0, 100.0)
        found = known.expected("long", 100.0)
        assert last < found <= 100.0
        last = found
    assert last > 80.0
    assert known.expected("short", 100.0) < 60.0


def test_no_more_is_expected_than_was_asked_for() -> None:
    known = Demand()
    known.came("alice", 0, 1.0)
    known.ended("alice", 10.0, 90.0)
    assert known.expected("alice", 10.0) == 10.0


def test_what_comes_in_a_second_by_principal_and_class() -> None:
    known = Demand()
    assert (known.rate("alice", 0), known.rate_of_all(0)) == (0.0, 0.0)
    for _ in range(60):
        for _ in range(3):
            known.came("alice", 0, 20.0)
        known.came("alice", 1, 7.0)
        known.came("bob", 0, 40.0)
        known.measure(1.0)
    assert known.rate("alice", 0) == pytest.approx(60.0, rel=0.01)
    assert known.rate("alice", 1) == pytest.approx(7.0, rel=0.01)
    assert known.rate_of_all(0) == pytest.approx(100.0, rel=0.01)
    for _ in range(15):
        known.measure(1.0)
    assert known.rate("alice", 0) < 7.0, "it asks no more"


def test_what_was_turned_away_comes_too() -> None:
    known = Demand()
    for _ in range(60):
        known.came("alice", 0, 20.0)
        for name in ("", waits_of("alice"), waits_of("stranger")):
            known.turned_away(0, name, 2.5, 2.5 * 20.0)
        known.turned_away(1, "", 0.5, 10.0)
        known.measure(1.0)
    assert known.rate("alice", 0) == pytest.approx(3.5 * 20.0, rel=0.01)
    assert known.rate_of_all(0) == pytest.approx(3.5 * 20.0, rel=0.01)
    assert known.rate_of_all(1) == pytest.approx(10.0, rel=0.01)
    assert known._of["alice"].came[0].each == pytest.approx(20.0)
    assert known.rate("stranger", 0) == 0.0, "it has no turns here"
    assert list(known._of) == ["alice"]


def test_a_rate_counts_what_is_expected_now() -> None:
    """The first requests were expected to take all that they asked for."""
    known = Demand()
    for _ in range(30):
        known.came("alice", 0, 1_000.0)
        known.measure(1.0)
    before = known.rate("alice", 0), known.rate_of_all(0)
    for _ in range(100):
        known.ended("alice", 1_000.0, 100.0)
    assert before == (pytest.approx(1_000.0), pytest.approx(1_000.0))
    assert known.rate("alice", 0) == pytest.approx(100.0)
    assert known.rate_of_all(0) == pytest.approx(100.0)


def test_after_one_second_the_rate_is_that_of_the_second() -> None:
    known = Demand()
    known.came("alice", 0, 50.0)
    known.measure(1.0)
    assert known.rate("alice", 0) == pytest.approx(50.0, rel=0.01)


class TestDue:
    """One in thirty answers of each principal takes 600 tokens, the others 20."""

    LENGTHS: ClassVar = [600.0 if number % 30 == 15 else 20.0 for number in range(3_000)]

    def known(self) -> Demand:
        known = Demand()
        for name in ("alice", "bob"):
            known.came(name, 0, 1.0)
            for used in self.LENGTHS[:90]:
                known.ended(name, 1_000.0, used)
        return known

    def charged(self, known: Demand, used: float) -> float:
        """What alice is charged with now for an answer that takes so much, beyond the charge."""
        charge = known.expected("alice", 1_000.0)
        known.ended("alice", 1_000.0, used)
        return known.due("alice", used - charge)

    def test_a_long_answer_among_short_ones_is_chance(self) -> None:
        known = self.known()
        for used in (20.0, 600.0, 20.0, 600.0):
            assert self.charged(known, used) == 0.0

    def test_what_is_longer_again_and_again_is_charged(self) -> None:
        known = self.known()
        owed = [0.0]
        for _ in range(60):
            owed.append(owed[-1] + 600.0 - known.expected("alice", 1_000.0))
            owed[-1] -= self.charged(known, 600.0)
        assert owed[2] > 1_000.0, "all of the first ones"
        assert owed[60] < 12 * 600.0
        assert owed[60] - owed[50] < 0.1 * 10 * 600.0, "nearly all of the last ones is charged"

    def test_what_is_shorter_again_and_again_is_given_back(self) -> None:
        known = self.known()
        found = [self.charged(known, 1.0) for _ in range(300)]
        assert found[0] == 0.0
        assert sum(found) < 0.0

    def test_in_the_long_run_it_is_charged_with_what_it_takes(self) -> None:
        known, charged = self.known(), 0.0
        for used in self.LENGTHS:
            charged += known.expected("alice", 1_000.0)
            charged += self.charged(known, used)
            known.measure(1.0)
        assert charged == pytest.approx(sum(self.LENGTHS), rel=0.05)

    def test_while_all_answers_are_alike_every_difference_is_charged(self) -> None:
        known = Demand()
        known.came("alice", 0, 1.0)
        for _ in range(50):
            known.ended("alice", 100.0, 20.0)
        assert known.due("alice", -80.0) == -80.0
        assert known.due("bob", 7.0) == 7.0, "of one that is not remembered, too"

    def test_what_is_owed_is_forgotten(self) -> None:
        known = self.known()
        self.charged(known, 600.0)
        assert known._of["alice"].owed > 400.0
        known.measure(demand.PART_MEMORY_S)
        assert known._of["alice"].owed < 300.0


def test_what_a_principal_was_like_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Demand()
    known.came("alice", 0, 50.0)
    known.ended("alice", 1_000.0, 10.0)
    for _ in range(20):
        known.measure(200.0)
    assert not known._of
    assert not known._named
    monkeypatch.setattr(demand, "KEPT", 3)
    for name in "abcadea":
        known.came(name, 0, 5.0)
    assert list(known._of) == ["d", "e", "a"]
    assert known._named.keys() == {waits_of(name) for name in "dea"}
    for name in "ddf":
        known.came(name, 0, 5.0)
    assert list(known._of) == ["a", "d", "f"], "who asked last is kept"


class TestOfMany:
    """Principals of which each asks rarely."""

    NAMES: ClassVar = [f"user-{number}" for number in range(10)]

    def rates(self, *seconds_and_per_s: tuple[int, float]) -> float:
        """The sum of their rates at last, in requests a second."""
        known, drawn = Demand(), random.Random(5)
        for seconds, per_s in seconds_and_per_s:
            for _ in range(seconds):
                for name in self.NAMES:
                    if drawn.random() < per_s / len(self.NAMES):
                        known.came(name, 0, 100.0)
                known.measure(1.0)
        return sum(known.rate(name, 0) for name in self.NAMES) / 100.0

    def test_when_all_stop_their_rates_fall_as_that_of_all(self) -> None:
        """Each by itself fell more slowly, to more than twice as much together."""
        assert self.rates((120, 5.0), (20, 0.0)) < 0.25

    def test_when_all_ask_more_their_rates_rise_as_that_of_all(self) -> None:
        assert self.rates((120, 1.0), (12, 8.0)) == pytest.approx(8.0, rel=0.2)

    def test_one_that_asks_much_keeps_its_rate_where_many_ask_once(self) -> None:
        known = Demand()
        for second in range(60):
            for _ in range(5):
                known.came("busy", 0, 100.0)
            for number in range(20):
                known.came(f"{second} {number}", 0, 100.0)
            known.measure(1.0)
        assert known.rate("busy", 0) == pytest.approx(5.0 * 100.0, rel=0.1)
