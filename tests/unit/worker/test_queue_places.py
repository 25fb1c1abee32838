"""Where requests stand, and when their turn comes."""

from __future__ import annotations

from tailrace.protocol.queue_place import Place
from worker.queue_places import places
from worker.workload import Totals, Workload

ORDER = [("a", 100.0), ("b", 300.0), ("c", 100.0)]


def measured() -> Workload:
    """Half of what is asked for is made: 50 tokens of each request, 100 tokens a second."""
    work = Workload()
    work.measure(Totals(100, 2, 200), 1.0, waited=True)
    return work


def test_a_request_waits_for_what_those_before_it_will_make_and_for_a_place() -> None:
    assert places(ORDER, measured(), more=False) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0), "c": Place(2, 2.5)},
        None,
    )


def test_before_a_rate_is_known_only_the_position_is_told() -> None:
    found, rest = places(ORDER, Workload(), more=True)
    assert list(found.values()) == [Place(0, None), Place(1, None), Place(2, None)]
    assert rest == Place(3, None)


def test_of_too_many_the_first_are_told_and_a_bound_for_the_others() -> None:
    assert places(iter(ORDER), measured(), more=False, most=2) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0)},
        Place(2, 2.5),
    )
    assert places(ORDER, measured(), more=False, most=3)[1] is None


def test_a_request_that_was_not_read_stands_behind_all() -> None:
    assert places(ORDER, measured(), more=True)[1] == Place(3, 3.0)
