"""What the engine's prefix cache holds, folded from the events that the engine publishes (pure).

The engine names a block of tokens by a hash of its own, which depends on its version and settings.
So each block has a second name here, its key: a digest of its tokens and all before them, and of
the *scope* (the tenant's salt and the adapter). With it the blocks of a prompt are found without
the engine.
"""

from __future__ import annotations

import array
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

# More blocks of 16 tokens than a cache of eight million tokens has. Above it the oldest are
# forgotten: events were lost.
MAX_BLOCKS: Final = 500_000

Hash = bytes | int
"""The engine's name of a block."""


class Stored(NamedTuple):
    """Consecutive blocks of one sequence are held from now on.

    Attributes:
        hashes: their names.
        parent: the block before them; None: they begin the sequence.
        tokens: those of all of them.
        scope: what identifies the sequence besides its tokens; only without `parent`.
    """

    hashes: Sequence[Hash]
    parent: Hash | None
    tokens: Sequence[int]
    scope: Sequence[str] = ()


class Removed(NamedTuple):
    """These blocks are no longer held."""

    hashes: Sequence[Hash]


class Cleared(NamedTuple):
    """No block is held, or it is unknown which ones are."""


Event = Stored | Removed | Cleared


def keys(tokens: Sequence[int], size: int, scope: Iterable[str]) -> Iterator[int]:
    """The keys of the full blocks of a sequence, first block first. `size`: tokens of a block."""
    return _keys(_root(scope), tokens, size)


def _root(scope: Iterable[str]) -> int:
    return _digest(b"\0".join(part.encode("utf-8", "surrogatepass") for part in scope))


def _keys(before: int, tokens: Sequence[int], size: int) -> Iterator[int]:
    for at in range(0, len(tokens) - size + 1, size):
        block = array.array("q", tokens[at : at + size])
        before = _digest(before.to_bytes(8, "little") + block.tobytes())
        yield before


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class CachedBlocks:
    """The blocks that are held.

    Attributes:
        size: tokens of a block.
        changes: number of changes.
        _keys: our key of each block by its hash, the one that was stored first at the front.
        _hashes: the hash of each block by its key.
    """

    def __init__(self, size: int, most: int = MAX_BLOCKS) -> None:
        self.size = size
        self.changes = 0
        self._most = most
        self._keys: dict[Hash, int] = {}
        self._hashes: dict[int, Hash] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, event: Event) -> None:
        """Apply one event. An event that does not fit is ignored: then this object knows fewer
        blocks than the engine holds."""
        self.changes += 1
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            for each in event.hashes:
                self._forget(each)
        else:
            self._keys.clear()
            self._hashes.clear()

    def prefix_length(self, keys: Sequence[int]) -> int:
        """How many of the blocks with these keys are held, up to the first that is not."""
        return len(list(itertools.takewhile(self._hashes.__contains__, keys)))

    def keys(self, tokens: Sequence[int], scope: Iterable[str]) -> array.array[int]:
        """The keys of a prompt's full blocks."""
        return array.array("Q", keys(tokens, self.size, scope))

    def _store(self, event: Stored) -> None:
        before = _root(event.scope) if event.parent is None else self._keys.get(event.parent)
        if before is None or len(event.tokens) != len(event.hashes) * self.size:
            return
        for name, key in zip(event.hashes, _keys(before, event.tokens, self.size), strict=True):
            self._forget(name)
            self._keys[name] = key
            self._hashes[key] = name
        while len(self._keys) > self._most:
            self._forget(next(iter(self._keys)))

    def _forget(self, name: Hash) -> None:
        key = self._keys.pop(name, None)
        if key is not None and self._hashes.get(key) == name:
            del self._hashes[key]
