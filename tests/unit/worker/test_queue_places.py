"""Where requests stand, and when their turn comes."""

from __future__ import annotations

from tailrace.protocol.queue_place import Place
from worker.queue_places import places
from worker.slots import BATCH
from worker.workload import Totals, Workload

ORDER = [("a", 100.0, 0), ("b", 300.0, 0), ("c", 100.0, 0)]
SHARE = 0.1


def measured() -> Workload:
    """Half of what is asked for is made: 50 tokens of each request, 100 tokens a second."""
    work = Workload()
    work.measure(Totals(100, 2, 200), 1.0, waited=True)
    return work


def test_a_request_waits_for_what_those_before_it_will_make_and_for_a_place() -> None:
    assert places(ORDER, measured(), batch_share=SHARE, more=False) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0), "c": Place(2, 2.5)},
        None,
    )


def test_the_wait_is_that_of_the_slots_that_come_free_where_that_is_known() -> None:
    work = Workload()
    # One slot, held for a second by one half of the requests and for three by the other.
    work.measure(Totals(2_000, 40, 4_000), 40.0, waited=True, holds=[1.0, 3.0] * 10)
    work.look_ahead(200.0, [2.9])
    found, _ = places(ORDER, work, batch_share=SHARE, more=False)
    eta_s = found["a"].eta_s
    assert eta_s is not None
    assert eta_s < 0.6  # by the rate alone it is 1 s


def test_before_a_rate_is_known_only_the_position_is_told() -> None:
    found, rest = places(ORDER, Workload(), batch_share=SHARE, more=True)
    assert list(found.values()) == [Place(0, None), Place(1, None), Place(2, None)]
    assert rest == Place(3, None)


def test_of_too_many_the_first_are_told_and_a_bound_for_the_others() -> None:
    assert places(iter(ORDER), measured(), batch_share=SHARE, more=False, most=2) == (
        {"a": Place(0, 0.5), "b": Place(1, 1.0)},
        Place(2, 2.5),
    )
    assert places(ORDER, measured(), batch_share=SHARE, more=False, most=3)[1] is None


def test_a_request_that_was_not_read_stands_behind_all() -> None:
    assert places(ORDER, measured(), batch_share=SHARE, more=True)[1] == Place(3, 3.0)


def shared(interactive: float) -> Workload:
    """The same, and so many tokens a second are made for interactive requests."""
    work = Workload()
    work.measure(Totals(100, 2, 200, 2 * interactive), 1.0, waited=True)
    return work


def test_interactive_requests_that_come_later_go_before_batch_requests() -> None:
    """A batch request was told the time that the whole rate would take, and with interactive
    requests at half of the capacity it waited for twice as long."""
    order = [("urgent", 100.0, 0), ("a", 100.0, BATCH), ("b", 100.0, BATCH)]
    found, rest = places(order, shared(50.0), batch_share=SHARE, more=True)
    assert found == {"urgent": Place(0, 0.5), "a": Place(1, 2.0), "b": Place(2, 3.0)}
    assert rest == Place(3, 4.0)


def test_batch_requests_get_their_share_whatever_interactive_requests_take() -> None:
    order = [("a", 0.0, BATCH), *((f"{n}", 900.0, 0) for n in range(9)), ("b", 0.0, BATCH)]
    found, _ = places(order, shared(95.0), batch_share=0.5, more=False)
    assert found["a"] == Place(0, 50 / 100 / 0.5)
    assert found["b"] == Place(10, 50 / 100 / 0.5), "the share is not spent on those before it"
