"""How many tokens of a conversation's beginnings an engine holds."""

from __future__ import annotations

import pytest

from worker.prefixes import held_prefixes
from worker.prefixes.cached_blocks import CachedBlocks, Removed, Stored
from worker.prefixes.held_prefixes import BELIEVED_S, MAX_OF_PROMPT, HeldPrefixes, lengths

SIZE = 4
ACME = ("acme",)
NOW = 100.0


def store(blocks: CachedBlocks, count: int, *, first: int = 0, base: int = 0) -> list[int]:
    """The engine stores blocks of the sequence base, base + 1, …"""
    names = [base + n for n in range(first, first + count)]
    tokens = [base + n for n in range(first * SIZE, (first + count) * SIZE)]
    blocks.apply(Stored(names, base + first - 1 if first else None, tokens, ACME))
    return names


@pytest.fixture
def blocks() -> CachedBlocks:
    return CachedBlocks(SIZE)


@pytest.fixture
def held(blocks: CachedBlocks) -> HeldPrefixes:
    return HeldPrefixes(blocks)


def serve(
    held: HeldPrefixes, digests: str, tokens: list[int], now: float = NOW, base: int = 0
) -> None:
    held.note_prompt(list(digests), tokens, [base + n for n in range(tokens[-1])], ACME, now)


def test_a_prefix_is_held_as_far_as_its_blocks_are(
    held: HeldPrefixes, blocks: CachedBlocks
) -> None:
    serve(held, "abc", [6, 13, 30])
    assert held.table(NOW) == {}
    store(blocks, 4)
    assert held.table(NOW) == {"a": 6, "b": 13, "c": 16}
    store(blocks, 3, first=4)
    assert held.table(NOW) == {"a": 6, "b": 13, "c": 28}
    blocks.apply(Removed([2]))
    assert held.table(NOW) == {"a": 6, "b": 8, "c": 8}
    blocks.apply(Removed([0]))
    assert held.table(NOW) == {}


def test_a_conversation_that_goes_on_is_one_prompt(
    held: HeldPrefixes, blocks: CachedBlocks
) -> None:
    serve(held, "a", [8])
    serve(held, "abc", [11, 20, 24])
    store(blocks, 6)
    assert len(held) == 1
    assert held.table(NOW) == {"a": 8, "b": 20, "c": 24}, "what was counted stays"


def test_branches_share_what_they_share(held: HeldPrefixes, blocks: CachedBlocks) -> None:
    serve(held, "sx", [8, 12])
    held.note_prompt(["s", "y"], [8, 16], [*range(8), *range(50, 58)], ACME, NOW)
    store(blocks, 2)
    assert held.table(NOW) == {"s": 8, "x": 8, "y": 8}


def test_of_an_engine_that_does_not_say_what_was_served_is_believed_for_a_while() -> None:
    prefixes = HeldPrefixes()
    serve(prefixes, "ab", [5, 9])
    assert prefixes.table(NOW + BELIEVED_S - 1) == {"a": 5, "b": 9}
    assert prefixes.table(NOW + BELIEVED_S) == {}
    assert len(prefixes) == 0


def test_what_was_dropped_and_is_stored_again_is_held_again(
    held: HeldPrefixes, blocks: CachedBlocks
) -> None:
    serve(held, "a", [8])
    store(blocks, 2)
    blocks.apply(Removed([0, 1]))
    assert held.table(NOW) == {}
    store(blocks, 2)
    assert held.table(NOW) == {"a": 8}


def test_nothing_grows_without_end(
    held: HeldPrefixes, blocks: CachedBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_prefixes, "MAX_PROMPTS", 3)
    monkeypatch.setattr(held_prefixes, "MAX_DIGESTS", 2)
    monkeypatch.setattr(held_prefixes, "MAX_KEYS", 5)
    for n, digest in enumerate("abcde"):
        serve(held, digest, [4], base=100 * n)
        store(blocks, 1, base=100 * n)
    assert len(held) == 3
    assert list(held.table(NOW)) == ["e", "d"], "those that were served last"
    serve(held, "f", [16], base=900)
    assert len(held) == 2
    serve(held, "g", [24], base=1900)
    assert len(held) == 0, "one alone is too long"


def test_of_a_long_conversation_the_first_and_the_last_beginnings_are_told(
    held: HeldPrefixes, blocks: CachedBlocks
) -> None:
    digests = [f"d{n}" for n in range(40)]
    held.note_prompt(digests, list(range(4, 164, 4)), list(range(160)), ACME, NOW)
    store(blocks, 40)
    assert list(held.table(NOW)) == ["d0", *digests[1 - MAX_OF_PROMPT :]]


def test_lengths_are_estimated_by_characters_and_the_last_is_counted() -> None:
    messages = [{"role": "user", "content": "x" * n} for n in (84, 184, 84)]
    assert lengths(messages, [], 100) == [25, 75, 100]
    assert lengths(messages, [{"d": "y" * 399}], 100) == [62, 87, 100]
