"""Stop strings in a stream of text (pure)."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds stop strings in a stream and holds back what may be the beginning of one.

    The stop string that is completed first counts. Of those completed by the same character, the
    longest counts. So the answer does not depend on how the text was cut.

    Attributes:
        complete: a stop string was found.
        _buffer: text that may be the beginning of a stop string; empty once `complete`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted((s for s in stops if s), key=len, reverse=True)
        self._buffer = ""
        self.complete = False

    def push(self, text: str) -> str:
        """Text outside stop strings. Text from a complete stop string on is dropped."""
        if not self._stops:
            return text
        buffer = self._buffer
        for character in text:
            buffer += character
            stop = next((s for s in self._stops if buffer.endswith(s)), None)
            if stop is not None:
                self.complete, self._buffer = True, ""
                return buffer[: -len(stop)]
        keep = self._possible_start(buffer)
        self._buffer = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The stream ended: text that was held back is ordinary text."""
        buffer, self._buffer = self._buffer, ""
        return buffer

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), len(self._stops[0]) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)),
            0,
        )
