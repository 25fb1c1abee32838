"""Which partition a response gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import hypothesis
import hypothesis.strategies as st

from gateway.load import placement
from gateway.load.pool_workers import PoolWorker
from tests.support import cases


@cases.each(
    ("partitions", "offset", "expected"),
    [
        (8, 0, [0, 2, 4, 6]),
        (8, 3, [1, 3, 5, 7]),
        (3, 2, [0, 1, 2]),
        (1, 9, [0]),
        (12, 1, [1, 4, 7, 10]),
    ],
)
def test_preferred_partitions_are_spread_evenly(
    partitions: int, offset: int, expected: list[int]
) -> None:
    assert placement.preferred_partitions(partitions, offset) == expected


def test_a_new_response_takes_the_least_loaded_preferred_partition() -> None:
    load = {0: 3, 2: 1, 4: 2, 6: 5}
    assert placement.choose([0, 2, 4, 6], 8, load.__getitem__) == 2


def test_equal_partitions_take_turns() -> None:
    counts = Counter(
        placement.choose([0, 2, 4, 6], 8, lambda _p: 0, turn=turn) for turn in range(8)
    )
    assert counts == {0: 2, 2: 2, 4: 2, 6: 2}


def test_a_conversation_stays_where_it_was_also_outside_the_preferred_ones() -> None:
    assert placement.choose([0, 2], 8, lambda p: 3 if p == 5 else 0, sticky=5) == 5


def test_an_overloaded_favourite_gives_way_to_the_next_candidate() -> None:
    load = {0: 10, 2: 12, 5: 40, 7: 90}
    assert placement.choose([0, 2], 8, load.__getitem__, sticky=5) == 0
    assert placement.choose([0, 2], 8, load.__getitem__, sticky=7) == 0


def test_below_the_floor_stickiness_is_worth_more_than_evenness() -> None:
    assert (
        placement.choose([0, 2, 4, 6], 8, lambda p: placement.FLOOR - 1 if p == 5 else 0, sticky=5)
        == 5
    )
    assert (
        placement.choose([0, 2, 4, 6], 8, lambda p: placement.FLOOR if p == 5 else 0, sticky=5) != 5
    )


def test_a_partition_that_no_ready_worker_serves_is_left_out_while_there_is_another() -> None:
    load = {0: 0, 2: 9, 4: 9, 6: 1}
    served = {2, 3, 4, 5, 6, 7}
    assert placement.choose([0, 2, 4, 6], 8, lambda p: load.get(p, 0), ready_partitions=served) == 6
    assert (
        placement.choose([0, 2], 8, lambda p: load.get(p, 0), sticky=1, ready_partitions=served)
        == 2
    )
    assert placement.choose([0, 1], 8, lambda _p: 0, ready_partitions={5}) == 5
    assert placement.choose([0, 1], 8, lambda _p: 0, ready_partitions={99}) in {0, 1}


@cases.each("strange", [-1, 8, 10**6])
def test_a_partition_this_log_does_not_have_is_no_candidate(strange: int) -> None:
    assert placement.choose([1], 8, lambda _p: 0, sticky=strange) == 1


@hypothesis.given(
    st.lists(st.integers(0, 100), min_size=8, max_size=8),
    st.integers(0, 7),
    st.integers(0, 50),
)
def test_no_partition_is_chosen_far_above_the_fair_share(
    loads: list[int], sticky: int, turn: int
) -> None:
    preferred = [1, 3, 5, 7]
    choice = placement.choose(preferred, 8, loads.__getitem__, sticky=sticky, turn=turn)
    share = (sum(loads[p] for p in {*preferred, choice}) + 1) / len({*preferred, choice})
    assert choice in {*preferred, sticky}
    assert loads[choice] < max(placement.FLOOR, placement.LOAD_FACTOR * share + 1) or loads[
        choice
    ] == min(loads[p] for p in preferred)


# ---- by what workers tell -----------------------------------------------------------------------

EACH = 100.0  # tokens of a response


def pool(*loads: int, capacity: int = 20) -> list[PoolWorker]:
    """Workers a, b, … of two partitions each, with so many responses."""
    return [
        PoolWorker("abcdefgh"[n], (2 * n, 2 * n + 1), capacity, load, load * EACH)
        for n, load in enumerate(loads)
    ]


def place_of(
    workers: list[PoolWorker],
    cached: dict[str, int] | None = None,
    *,
    preferred: Sequence[int] = (0, 2, 4, 6),
    sticky: int | None = None,
    turn: int = 0,
    running: dict[int, int] | None = None,
) -> placement.Place:
    counts = Counter(running or {})
    return placement.place(
        workers,
        preferred,
        counts.__getitem__,
        cached=cached or {},
        each=EACH,
        sticky=sticky,
        turn=turn,
    )


def test_the_worker_that_holds_most_of_the_prompt_gets_it() -> None:
    place = place_of(pool(3, 0, 0), {"a": 500, "b": 300})
    assert (place.incarnation, place.cached, place.outcome) == ("a", 500, "hit")
    assert place_of(pool(3, 0, 0), {"a": 500, "b": 600}).incarnation == "b"


def test_of_workers_that_hold_about_the_same_the_conversations_then_the_least_loaded() -> None:
    cached = {"a": 640, "b": 641, "c": 650}
    assert place_of(pool(1, 2, 3), cached).incarnation == "a"
    assert place_of(pool(1, 2, 3), cached, sticky=5) == placement.Place(5, "c", 650, "hit")


def test_no_worker_gets_more_than_its_share_however_much_it_holds() -> None:
    place = place_of(pool(13, 9, 9), {"a": 9_000})
    assert (place.incarnation, place.outcome) == ("a", "hit")
    place = place_of(pool(14, 9, 9), {"a": 9_000})
    assert (place.outcome, place.cached) == ("overridden", 0)
    assert place.incarnation != "a"
    assert place_of(pool(14, 9, 9), {"a": 9_000, "c": 64}).incarnation == "c", "the next best"


def test_a_worker_with_places_left_is_not_too_busy_and_one_where_requests_wait_is() -> None:
    warm = {"a": 9_000}
    assert place_of(pool(placement.FLOOR - 1, 0, 0), warm).outcome == "hit"
    assert place_of(pool(placement.FLOOR, 0, 0), warm).outcome == "overridden"
    assert place_of(pool(4, 0, 0, capacity=4), warm).outcome == "overridden"
    a, b = pool(3, 0)
    waiting = PoolWorker("a", a.partitions, a.capacity, a.requests, a.load, waits=True)
    assert place_of([waiting, b], warm).outcome == "overridden"


def test_where_requests_wait_the_worker_that_begins_first_is_taken() -> None:
    a, b, c = pool(9, 30, 20)
    waiting = [
        replace(each, waits=True, wait_s=wait_s) for each, wait_s in ((a, 12.0), (b, 3.0), (c, 9.0))
    ]
    assert place_of(waiting).incarnation == "b"
    # Warmth counts as long as the wait is no longer than 1.25 times the mean, which is 8 s.
    assert place_of(waiting, {"c": 9_000}).incarnation == "c"
    assert place_of(waiting, {"a": 9_000}).outcome == "overridden"
    assert place_of(waiting, sticky=4).incarnation == "c"
    assert place_of(waiting, sticky=0).incarnation == "b"


def test_the_share_of_a_worker_follows_its_capacity() -> None:
    small, large = PoolWorker("s", (0,), 10, 9, 900.0), PoolWorker("l", (2,), 30, 25, 2_500.0)
    assert place_of([small, large], {"l": 9_000}).outcome == "hit"
    assert place_of([small, large]).incarnation == "l"


def test_few_cached_tokens_are_not_worth_a_worker() -> None:
    place = place_of(pool(1, 0), {"a": placement.WORTH_TOKENS - 1})
    assert (place.incarnation, place.outcome, place.cached) == ("b", "miss", 0)


def test_what_is_held_nowhere_stays_with_its_conversation_while_the_load_allows() -> None:
    assert place_of(pool(5, 0, 0), sticky=1) == placement.Place(1, "a", 0, "miss")
    assert place_of(pool(19, 0, 0), sticky=1).incarnation != "a"


def test_after_a_rebalance_what_follows_goes_to_who_holds_it_and_not_to_the_old_partition() -> None:
    """Partition 1 was a's, and is b's now."""
    a, b = PoolWorker("a", (0,), 20), PoolWorker("b", (1, 2, 3), 20)
    assert place_of([a, b], {"a": 500}, sticky=1) == placement.Place(0, "a", 500, "hit")
    place = place_of([b], {}, sticky=0)
    assert (place.incarnation, place.outcome) == ("b", "miss")


def test_a_new_conversation_takes_the_least_loaded_worker_and_workers_take_turns() -> None:
    assert place_of(pool(3, 1, 2)).incarnation == "b"
    counts = Counter(place_of(pool(0, 0, 0), turn=turn).incarnation for turn in range(9))
    assert counts == {"a": 3, "b": 3, "c": 3}


def test_a_new_conversation_takes_a_preferred_partition_unless_their_workers_are_too_busy() -> None:
    assert place_of(pool(4, 2, 0), preferred=[0, 2]) == placement.Place(2, "b", 0, "miss")
    assert place_of(pool(19, 19, 0), preferred=[0, 2]).incarnation == "c"


def test_within_a_worker_the_partition_with_the_fewest_of_this_gateway_is_taken() -> None:
    workers = [PoolWorker("a", (0, 1, 2, 3), 20)]
    assert place_of(workers, preferred=[1, 3], running={1: 2}).partition == 3
    assert place_of(workers, preferred=[7], running={0: 1, 1: 1, 2: 0, 3: 1}).partition == 2
    turns = Counter(place_of(workers, preferred=[1, 3], turn=n).partition for n in range(4))
    assert turns == {1: 2, 3: 2}


@cases.each("count", [1, 2, 3, 4])
def test_all_partitions_get_their_turn_whatever_the_number_of_workers(count: int) -> None:
    preferred = list(range(2 * count))
    turns = Counter(
        place_of(pool(*[0] * count), preferred=preferred, turn=n).partition
        for n in range(4 * count)
    )
    assert turns == dict.fromkeys(preferred, 2)


@hypothesis.given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 64), st.booleans()), min_size=1, max_size=6
    ),
    st.lists(st.integers(0, 10_000), min_size=6, max_size=6),
    st.one_of(st.none(), st.integers(0, 11)),
    st.integers(0, 50),
)
def test_no_worker_is_chosen_above_the_bound_while_another_is_below(
    shapes: list[tuple[int, int, bool]], holds: list[int], sticky: int | None, turn: int
) -> None:
    workers = [
        PoolWorker("abcdef"[n], (2 * n, 2 * n + 1), capacity, count, count * EACH, waits)
        for n, (capacity, count, waits) in enumerate(shapes)
    ]
    cached = dict(zip("abcdef", holds, strict=True))
    place = place_of(workers, cached, sticky=sticky, turn=turn)
    choice = next(w for w in workers if w.incarnation == place.incarnation)
    assert place.partition in choice.partitions
    total = sum(w.load for w in workers) + EACH
    share = placement.LOAD_FACTOR * total / sum(w.capacity for w in workers)

    def below(w: PoolWorker) -> bool:
        free = not w.waits and w.requests < min(placement.FLOOR, w.capacity)
        return free or w.load <= share * w.capacity

    assert below(choice) or not any(map(below, workers))


def test_a_key_always_leads_to_the_same_partition_and_keys_spread() -> None:
    assert placement.partition_of_key("p", "k", 8) == placement.partition_of_key("p", "k", 8)
    assert len({placement.partition_of_key("p", str(i), 8) for i in range(100)}) == 8
    assert placement.partition_of_key("ab", "c", 1 << 60) != placement.partition_of_key(
        "a", "bc", 1 << 60
    )


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_a_longer_dialogue_begins_with_the_digests_of_the_shorter_one() -> None:
    first = [message("user", "a"), message("assistant", "b")]
    shorter, longer = (
        placement.prefix("t", "m", first),
        placement.prefix("t", "m", [*first, message("user", "c")]),
    )
    assert longer[:2] == shorter
    assert len(set(longer)) == 3


def test_prefixes_of_other_tenants_models_and_cuts_differ() -> None:
    base = placement.prefix("t", "m", [message("user", "ab")])
    assert base != placement.prefix("u", "m", [message("user", "ab")])
    assert base != placement.prefix("t", "n", [message("user", "ab")])
    assert (
        base[-1:] != placement.prefix("t", "m", [message("user", "a"), message("user", "b")])[-1:]
    )


def test_only_the_longest_digests_are_kept() -> None:
    messages = [message("user", str(i)) for i in range(100)]
    assert (
        placement.prefix("t", "m", messages)[-1] == placement.prefix("t", "m", messages[:100])[-1]
    )
    assert len(placement.prefix("t", "m", messages)) == placement.MAX_DIGESTS
