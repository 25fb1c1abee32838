"""What an engine's prefix cache holds, by its events."""

from __future__ import annotations

import random

import pytest

from worker.prefixes.cached_blocks import CachedBlocks, Cleared, Removed, Stored

SIZE = 4
ACME = ("acme",)
PROMPT = list(range(18))  # four full blocks and two tokens


@pytest.fixture
def blocks() -> CachedBlocks:
    return CachedBlocks(SIZE)


def held(blocks: CachedBlocks, tokens: list[int], scope: tuple[str, ...] = ACME) -> int:
    return blocks.prefix_length(blocks.keys(tokens, scope))


def store(blocks: CachedBlocks, tokens: list[int] = PROMPT, scope: tuple[str, ...] = ACME) -> None:
    """All full blocks of a prompt, in two events as of two steps of an engine."""
    count = len(tokens) // SIZE
    names = [repr((scope, tokens[: (at + 1) * SIZE])).encode() for at in range(count)]
    blocks.apply(Stored(names[:2], None, tokens[: 2 * SIZE], scope))
    blocks.apply(Stored(names[2:], names[1], tokens[2 * SIZE : count * SIZE]))


def name_of(count: int, tokens: list[int] = PROMPT) -> bytes:
    return repr((ACME, tokens[: count * SIZE])).encode()


def test_the_full_blocks_of_a_prompt_are_held_once_they_were_stored(blocks: CachedBlocks) -> None:
    assert held(blocks, PROMPT) == 0
    store(blocks)
    assert held(blocks, PROMPT) == 4
    assert held(blocks, [*PROMPT[:9], 99, *PROMPT[10:]]) == 2
    assert held(blocks, [99, *PROMPT[1:]]) == 0


def test_what_another_scope_stored_is_not_held_here(blocks: CachedBlocks) -> None:
    store(blocks)
    assert held(blocks, PROMPT, ("other",)) == 0
    assert held(blocks, PROMPT, ("adapter", "acme")) == 0
    assert held(blocks, PROMPT, ("ac", "me")) == 0


def test_blocks_behind_one_that_was_removed_are_of_no_use(blocks: CachedBlocks) -> None:
    store(blocks)
    blocks.apply(Removed([name_of(2), b"never stored"]))
    assert (held(blocks, PROMPT), len(blocks)) == (1, 3)
    store(blocks)
    assert held(blocks, PROMPT) == 4


def test_nothing_is_held_after_all_was_cleared(blocks: CachedBlocks) -> None:
    store(blocks)
    blocks.apply(Cleared())
    assert (held(blocks, PROMPT), len(blocks)) == (0, 0)


def test_what_follows_an_unknown_block_or_has_not_its_tokens_is_left_out(
    blocks: CachedBlocks,
) -> None:
    blocks.apply(Stored([b"b"], b"a", PROMPT[:SIZE]))
    blocks.apply(Stored([b"c", b"d"], None, PROMPT[:SIZE], ACME))
    blocks.apply(Stored([b"e"], None, [], ACME))
    assert len(blocks) == 0


def test_of_too_many_the_oldest_are_forgotten() -> None:
    blocks = CachedBlocks(SIZE, most=3)
    store(blocks)
    assert (held(blocks, PROMPT), len(blocks)) == (0, 3)


def test_an_engine_that_keeps_at_most_so_many_is_followed_exactly(blocks: CachedBlocks) -> None:
    """Against the plain set of prompts' beginnings, over a random history."""
    pick, truth = random.Random(7), set[tuple[int, ...]]()
    prompts = [[pick.randrange(3) for _ in range(5 * SIZE)] for _ in range(30)]
    for prompt in prompts:
        for end in range(SIZE, len(prompt) + 1, SIZE):
            begun = tuple(prompt[:end])
            parent = repr(begun[:-SIZE]).encode() if begun[:-SIZE] else None
            if begun not in truth and (parent is None or begun[:-SIZE] in truth):
                truth.add(begun)
                blocks.apply(Stored([repr(begun).encode()], parent, begun[-SIZE:], ACME))
        if truth and pick.random() < 0.5:
            gone = pick.choice(sorted(truth))
            truth.discard(gone)
            blocks.apply(Removed([repr(gone).encode()]))
        for each in prompts:
            begun_by = [tuple(each[:end]) for end in range(SIZE, len(each) + 1, SIZE)]
            expected = next((n for n, b in enumerate(begun_by) if b not in truth), len(begun_by))
            assert held(blocks, each) == expected
