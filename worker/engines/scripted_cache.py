"""The scripted engine's prefix cache: blocks of prompts; the one used longest ago goes (pure).

As in vLLM, a block can be used only with all before it, and missing blocks of a prompt are computed
and held from then on. The tokens of an answer are held once they are part of a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from worker.prefixes.cached_blocks import CachedBlocks, Removed, Stored, keys

BLOCK: Final = 16


class PrefixCache:
    """The blocks of at most `tokens` tokens.

    Attributes:
        blocks: what it holds, as an engine's events say it.
        _order: the hashes of the blocks, the one used longest ago first.
    """

    def __init__(self, tokens: int) -> None:
        self.blocks = CachedBlocks(BLOCK)
        self._most = tokens // BLOCK
        self._order: dict[int, None] = {}

    def use(self, tokens: Sequence[int], scope: Sequence[str]) -> int:
        """Compute a prompt. Returns how many of its tokens were held before. The last one is
        always computed, because the answer begins with it."""
        names = list(keys(tokens, BLOCK, scope))[: self._most]
        hit = next((n for n, name in enumerate(names) if name not in self._order), len(names))
        for at, name in enumerate(names):
            if name not in self._order:
                parent, block = names[at - 1] if at else None, tokens[at * BLOCK :][:BLOCK]
                self.blocks.apply(Stored((name,), parent, block, scope))
        for name in reversed(names):  # of equals the end goes first: nothing can use it alone
            self._order.pop(name, None)
            self._order[name] = None
        while len(self._order) > self._most:
            oldest = next(iter(self._order))
            del self._order[oldest]
            self.blocks.apply(Removed((oldest,)))
        return min(hit * BLOCK, len(tokens) - 1)
