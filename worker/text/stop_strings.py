"""Stop strings in a stream of text (pure)."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds stop strings in a stream and holds back what may be the beginning of one.

    The stop string that is completed first counts. Of those completed by the same character, the
    longest counts. So the answer does not depend on how the text was cut.

    Attributes:
        found: a stop string was completed.
        _held: text that may be the beginning of a stop string; empty once `found`.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted((s for s in stops if s), key=len, reverse=True)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that is no part of a stop string. Text from a found stop string on is dropped."""
        if not self._stops:
            return text
        held = self._held
        for character in text:
            held += character
            stop = next((s for s in self._stops if held.endswith(s)), None)
            if stop is not None:
                self.found, self._held = True, ""
                return held[: -len(stop)]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The stream ended: text that was held back is ordinary text."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        longest = min(len(text), len(self._stops[0]) - 1)
        return next(
            (n for n in range(longest, 0, -1) if any(s.startswith(text[-n:]) for s in self._stops)),
            0,
        )
