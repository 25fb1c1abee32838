"""Which beginnings of conversations this worker's engine holds, by the digests that gateways know
(pure; docs/design/placement.md, Prefix affinity).

A gateway may have no tokenizer. It names the beginnings of a prompt by digests of its messages, and
puts them into the request (`records.Request.prefix`). The worker knows how many tokens a prompt
has, and of which blocks the engine holds it. So it can say of each digest how many are held now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from worker.prefixes.cached_blocks import CachedBlocks
from worker.text import messages

# All of them are scanned once a second: 20 ms at most.
MAX_PROMPTS: Final = 1_000
MAX_KEYS: Final = 100_000  # of blocks, of all prompts; 8 bytes each
MAX_DIGESTS: Final = 8_192  # in the table
# Of one prompt: the first, which may be common to many, and the last ones.
MAX_OF_PROMPT: Final = 16
# For this time a served prompt counts as held, if the engine does not report its cache.
BELIEVED_S: Final = 10 * 60.0
# Tokens that a chat template adds to a message, for estimates.
_AROUND: Final = 16


def lengths(
    request_messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]], tokens: int
) -> list[int]:
    """Tokens up to the end of each message, of a prompt that has `tokens`: estimated by characters,
    the last one exact."""
    total, sums = messages.characters([], tools), []
    for message in request_messages:
        total += messages.characters([message], []) + _AROUND
        sums.append(total)
    return [tokens * each // total for each in sums]


@dataclass(slots=True)
class _Prompt:
    """One prompt that was served.

    Attributes:
        tokens: up to each digest, the longest last.
        keys: of its blocks; empty where the engine does not report its cache.
        at: when it was served (monotonic seconds).
    """

    tokens: dict[str, int]
    keys: Sequence[int]
    at: float


class HeldPrefixes:
    """Served prompts, and how much of them is held.

    Attributes:
        _prompts: by the longest digest, the latest at the end. A prompt that continues another
            one replaces it.
        _keys: number of all their keys.
        _changes: number of served prompts.
        _last: the versions of the last table's inputs, and the table.
    """

    def __init__(self, blocks: CachedBlocks | None = None) -> None:
        """`blocks`: what the engine holds; None if it does not report it."""
        self.blocks = blocks
        self._prompts: dict[str, _Prompt] = {}
        self._keys = 0
        self._changes = 0
        self._last: tuple[tuple[int, int], dict[str, int]] | None = None

    def __len__(self) -> int:
        return len(self._prompts)

    def note_prompt(
        self,
        digests: Sequence[str],
        tokens: Sequence[int],
        prompt_ids: Sequence[int],
        scope: Sequence[str],
        now: float,
    ) -> None:
        """The engine gets a prompt.

        Args:
            digests: the longest last.
            tokens: up to each of them.
            scope: as of `cached_blocks.keys`.
        """
        if not digests:
            return
        self._changes += 1
        by_digest = dict(zip(digests, tokens, strict=True))
        for digest in digests:
            if (former := self._prompts.get(digest)) is not None:
                by_digest[digest] = former.tokens[digest]  # counted, not estimated
                self._drop(digest)
        by_digest[digests[-1]] = tokens[-1]
        if len(by_digest) > MAX_OF_PROMPT:
            first, *rest = by_digest.items()
            by_digest = dict([first, *rest[1 - MAX_OF_PROMPT :]])
        keys = self.blocks.keys(prompt_ids, scope) if self.blocks is not None else ()
        self._prompts[digests[-1]] = _Prompt(by_digest, keys, now)
        self._keys += len(keys)
        while len(self._prompts) > MAX_PROMPTS or self._keys > MAX_KEYS:
            self._drop(next(iter(self._prompts)))

    def table(self, now: float) -> dict[str, int]:
        """Tokens that are held now, by digest, the latest first."""
        if self.blocks is not None and self._last is not None:
            version, table = self._last
            if version == (self.blocks.changes, self._changes):
                return table
        counts: dict[str, int] = {}
        for digest, prompt in reversed(list(self._prompts.items())):
            most = self._held_tokens(prompt, now)
            if most == 0 and self.blocks is None:
                self._drop(digest)
                continue
            for each, tokens in prompt.tokens.items():
                have = min(tokens, most)
                count = counts.get(each, 0)
                if have > count and (count or len(counts) < MAX_DIGESTS):
                    counts[each] = have
        if self.blocks is not None:
            self._last = (self.blocks.changes, self._changes), counts
        return counts

    def _held_tokens(self, prompt: _Prompt, now: float) -> int:
        """How many tokens of a prompt are held, from its beginning."""
        if self.blocks is None:
            return max(prompt.tokens.values()) if now - prompt.at < BELIEVED_S else 0
        return self.blocks.prefix_length(prompt.keys) * self.blocks.size

    def _drop(self, digest: str) -> None:
        self._keys -= len(self._prompts.pop(digest).keys)
