"""The judge of a load test: what one client saw of one response, over however many connections it
took (pure).

Events carry `sequence_number`, dense from 0 for each response. So a number that is skipped is a
lost event, one that comes again a doubled one, and one that comes late is out of order. The text is
judged apart from the numbers: the deltas in the order they came have to be the text that the last
event states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# A copy of tailrace.protocol.events.TERMINAL_TYPES: locustfile.py needs of this repository only
# itself and two modules of bench.
TERMINAL_TYPES: Final = {"response.completed", "response.failed", "response.incomplete"}
DELTA: Final = "response.output_text.delta"


class Transcript:
    """Fed every event of a response in the order it came in.

    Attributes:
        next: the number the next event must have.
        lost: numbers skipped and never seen since.
        doubled: events seen a second time.
        swapped: events that came after a later one; each was counted as lost when its successor
            came, and is no longer.
        deltas: the text of all deltas, in the order they came, doubled ones left out.
        final: the response inside the terminal event; None until it came.
        after_end: events behind the terminal one.
    """

    def __init__(self) -> None:
        self.next = 0
        self.doubled = 0
        self.swapped = 0
        self.after_end = 0
        self.deltas: list[str] = []
        self.final: Mapping[str, Any] | None = None
        self.rid = ""
        self._missing: set[int] = set()
        self._done: str | None = None  # the text that output_text.done states

    @property
    def lost(self) -> int:
        return len(self._missing)

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def position(self) -> int:
        """The `starting_after` with which a reader continues from here."""
        return self.next - 1

    @property
    def tokens(self) -> int:
        """Output tokens, as the response itself counts them."""
        usage = (self.final or {}).get("usage") or {}
        return int(usage.get("output_tokens", 0))

    def feed(self, event: Mapping[str, Any]) -> None:
        """One event; raises nothing, whatever it holds."""
        number = event.get("sequence_number")
        if not isinstance(number, int):
            return
        if number < self.next:
            if number not in self._missing:
                self.doubled += 1
                return
            self._missing.discard(number)
            self.swapped += 1
        else:
            self._missing |= set(range(self.next, number))
            self.next = number + 1
        self.after_end += self.final is not None
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == DELTA:
            self.deltas.append(event["delta"])
        elif kind == "response.output_text.done":
            self._done = event["text"]
        elif kind in TERMINAL_TYPES:
            self.final = event["response"]
        if isinstance(event.get("response"), Mapping):
            self.rid = self.rid or event["response"].get("id", "")

    def problems(self, expected: str | None = None) -> list[str]:
        """Everything that is wrong with a response that has ended. `expected` is what its text has
        to be, or to begin, if it was cut short."""
        found = [
            f"{n} {what}"
            for n, what in (
                (self.lost, "lost"),
                (self.doubled, "doubled"),
                (self.swapped, "out of order"),
            )
            if n
        ]
        if self.after_end:
            found.append(f"{self.after_end} after the end")
        if self.final is None:
            return [*found, "no end"]
        stated = _stated(self.final)
        if stated != self.text:
            found.append("text differs from the final response")
        if self._done is not None and self._done != self.text:
            found.append("text differs from output_text.done")
        if expected is not None:
            whole = self.final.get("status") in ("completed", "incomplete")
            if self.text != expected if whole else not expected.startswith(self.text):
                found.append("text is not what the engine had to write")
        return found


def _stated(response: Mapping[str, Any]) -> str:
    parts = [
        part
        for item in response.get("output", [])
        if item.get("type") == "message"
        for part in item.get("content", [])
    ]
    return "".join(part.get("text", "") for part in parts)
