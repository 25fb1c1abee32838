"""What requests make of what they ask for, and how fast they come."""

from __future__ import annotations

import pytest

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
    assert known.rate("alice", 0) == pytest.approx(60.0, rel=0.2)
    assert known.rate("alice", 1) == pytest.approx(7.0, rel=0.2)
    assert known.rate_of_all(0) == pytest.approx(100.0, rel=0.2)
    for _ in range(10):
        known.measure(1.0)
    assert known.rate("alice", 0) < 10.0, "it asks no more"


def test_after_one_second_the_rate_is_that_of_the_second() -> None:
    known = Demand()
    known.came("alice", 0, 50.0)
    known.measure(1.0)
    assert known.rate("alice", 0) == pytest.approx(50.0, rel=0.2)


def test_what_a_principal_was_like_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Demand()
    known.came("alice", 0, 50.0)
    known.ended("alice", 1_000.0, 10.0)
    for _ in range(20):
        known.measure(200.0)
    assert not known._of
    monkeypatch.setattr(demand, "KEPT", 3)
    for name in "abcadea":
        known.came(name, 0, 5.0)
    assert list(known._of) == ["d", "e", "a"]
    for name in "ddf":
        known.came(name, 0, 5.0)
    assert list(known._of) == ["a", "d", "f"], "who asked last is kept"
