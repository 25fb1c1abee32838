"""Stop strings in a stream of text (pure)."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds stop strings in a stream and holds back what may be the beginning of one.

    The stop string that is completed first counts. Of those completed by the same character, the
    longest counts. So the answer does not depend on how the text was cut.

    With `after`, a stop string counts if a later token than the first `after` completes it.

    Attributes:
        complete: a stop string was found.
        early: how many of the next tokens complete none that counts.
        _buffer: text that may be the beginning of a stop string; empty once `complete`.
        _hidden: length of `_buffer`, or once `complete`, of the text that was cut away.
        _counts: a stop string that the present token completes counts.
        _lengths: characters of the last tokens, at least of those that are hidden as a whole.
    """

    def __init__(self, stops: Sequence[str], after: int = 0) -> None:
        self._stops = sorted((s for s in stops if s), key=len, reverse=True)
        self._buffer = ""
        self.complete = False
        self._hidden = 0
        self._lengths: list[int] = []
        self.early = after
        self._counts = after == 0

    @property
    def hidden_tokens(self) -> int:
        """How many of the last tokens show nothing, because a stop string may begin there, or cut
        them away. Tokens without a character belong to the one after them."""
        if not self._hidden:
            return 0
        characters = 0
        for number, length in enumerate(reversed(self._lengths)):
            characters += length
            if characters > self._hidden:
                return number
        return len(self._lengths)

    def begin_token(self) -> None:
        """What is pushed from now on is the next token's."""
        if not self._stops:
            return  # nearly all answers: this is called for each token
        self._lengths = [*self._lengths[len(self._lengths) - self.hidden_tokens :], 0]
        self.begin_tokens(1)

    def begin_tokens(self, count: int) -> None:
        """What is pushed from now on is that of the next `count` tokens: `early` ones, or later
        ones."""
        self._counts = self.early == 0
        self.early = max(0, self.early - count)

    def push(self, text: str) -> str:
        """Text outside stop strings. Text from a complete stop string on is dropped."""
        if not self._stops:
            return text
        if self._lengths:
            self._lengths[-1] += len(text)
        buffer = self._buffer
        for at, character in enumerate(text, 1):
            buffer += character
            stops = self._stops if self._counts else ()
            stop = next((s for s in stops if buffer.endswith(s)), None)
            if stop is not None:
                self.complete, self._buffer = True, ""
                self._hidden = len(stop) + len(text) - at
                return buffer[: -len(stop)]
        keep = self._possible_start(buffer)
        self._buffer = buffer[len(buffer) - keep :]
        self._hidden = keep
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The stream ended: text that was held back is ordinary text."""
        buffer, self._buffer = self._buffer, ""
        if not self.complete:
            self._hidden = 0
        return buffer

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), len(self._stops[0]) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)),
            0,
        )
