"""Which partition a response gets."""

from __future__ import annotations

from collections import Counter

import hypothesis
import hypothesis.strategies as st
import pytest

from gateway import placement


@pytest.mark.parametrize(
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
    chosen = Counter(
        placement.choose([0, 2, 4, 6], 8, lambda _p: 0, turn=turn) for turn in range(8)
    )
    assert chosen == {0: 2, 2: 2, 4: 2, 6: 2}


def test_a_conversation_stays_where_it_was_also_outside_the_preferred_ones() -> None:
    assert placement.choose([0, 2], 8, lambda p: 3 if p == 5 else 0, sticky=5) == 5


def test_a_warm_prefix_goes_before_the_old_place() -> None:
    assert placement.choose([0, 2], 8, lambda _p: 0, warm=7, sticky=5) == 7


def test_an_overloaded_favourite_gives_way_to_the_next_candidate() -> None:
    load = {0: 10, 2: 12, 5: 40, 7: 90}
    assert placement.choose([0, 2], 8, load.__getitem__, warm=7, sticky=5) == 0


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
    assert placement.choose([0, 2, 4, 6], 8, lambda p: load.get(p, 0), served=served) == 6
    assert placement.choose([0, 2], 8, lambda p: load.get(p, 0), warm=1, served=served) == 2
    assert placement.choose([0, 1], 8, lambda _p: 0, served={5}) == 5
    assert placement.choose([0, 1], 8, lambda _p: 0, served={99}) in {0, 1}


@pytest.mark.parametrize("strange", [-1, 8, 10**6])
def test_a_partition_this_log_does_not_have_is_no_candidate(strange: int) -> None:
    assert placement.choose([1], 8, lambda _p: 0, warm=strange, sticky=strange) == 1


@hypothesis.given(
    st.lists(st.integers(0, 100), min_size=8, max_size=8),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(0, 50),
)
def test_no_partition_is_chosen_far_above_the_fair_share(
    loads: list[int], warm: int, sticky: int, turn: int
) -> None:
    preferred = [1, 3, 5, 7]
    chosen = placement.choose(preferred, 8, loads.__getitem__, warm=warm, sticky=sticky, turn=turn)
    share = (sum(loads[p] for p in {*preferred, chosen}) + 1) / len({*preferred, chosen})
    assert chosen in {*preferred, warm, sticky}
    assert loads[chosen] < max(placement.FLOOR, placement.LOAD_FACTOR * share + 1) or loads[
        chosen
    ] == min(loads[p] for p in preferred)


def test_a_key_always_leads_to_the_same_partition_and_keys_spread() -> None:
    assert placement.of_key("p", "k", 8) == placement.of_key("p", "k", 8)
    assert len({placement.of_key("p", str(i), 8) for i in range(100)}) == 8
    assert placement.of_key("ab", "c", 1 << 60) != placement.of_key("a", "bc", 1 << 60)


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
