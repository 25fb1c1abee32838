"""The scripted engine's prefix cache."""

from __future__ import annotations

from worker.engines.scripted_cache import BLOCK, PrefixCache

ACME = ("acme",)


def prompt(first: int, blocks: int) -> list[int]:
    return list(range(first, first + blocks * BLOCK + 3))


def test_a_longer_prompt_finds_the_blocks_of_the_shorter_one() -> None:
    cache = PrefixCache(100 * BLOCK)
    assert cache.use(prompt(0, 3), ACME) == 0
    assert cache.use(prompt(0, 5), ACME) == 3 * BLOCK
    assert cache.use(prompt(0, 5), ("other",)) == 0
    assert cache.use(prompt(0, 5)[: 5 * BLOCK], ACME) == 5 * BLOCK - 1, "the last one is computed"


def test_what_was_used_longest_ago_goes_first_and_the_events_say_so() -> None:
    cache = PrefixCache(5 * BLOCK)
    old, new = prompt(0, 3), prompt(1000, 3)
    cache.use(old, ACME)
    cache.use(new, ACME)
    told = [cache.blocks.prefix_length(cache.blocks.keys(each, ACME)) for each in (old, new)]
    assert told == [2, 3]
    assert cache.use(old, ACME) == 2 * BLOCK
    assert cache.use(new, ACME) == 2 * BLOCK, "the blocks of the older one took a place"
    assert len(cache.blocks) == 5
