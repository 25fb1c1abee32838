"""Judges what one client saw of one response in a load test, over all its connections (pure).

Events carry `sequence_number`, dense from 0 for each response. So a skipped number is a lost event,
a repeated number a doubled one, and a late number an event out of order. The text is checked
separately: the deltas of each output item, in order of arrival, must be its text, arguments or
input in the terminal event. An event with the member `queue` has no number of its own: it repeats
the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# A copy of tailrace.protocol.events.TERMINAL_TYPES, so that locustfile.py needs only itself and two
# modules of bench.
TERMINAL_TYPES: Final = {"response.completed", "response.failed", "response.incomplete"}
DELTA: Final = "response.output_text.delta"


class Transcript:
    """Checks the events of a response. `feed` gets them in order of arrival.

    Attributes:
        next: the number that the next event must have.
        lost: numbers that were skipped and not seen later.
        doubled: events seen a second time.
        swapped: events that came after a later one; they no longer count as lost.
        deltas: the text of all deltas of messages in order of arrival, without doubled ones.
        items: those of each output item, by its index: of messages, reasoning and calls.
        final: the response in the terminal event; None before it.
        after_end: number of events after the terminal one.
        rid: the response id; empty before the first event that has it.
    """

    def __init__(self) -> None:
        self.next = 0
        self.doubled = 0
        self.swapped = 0
        self.after_end = 0
        self.deltas: list[str] = []
        self.items: dict[int, list[str]] = {}
        self.final: Mapping[str, Any] | None = None
        self.rid = ""
        self._missing: set[int] = set()
        self._done_text: str | None = None  # the text in output_text.done

    @property
    def lost(self) -> int:
        return len(self._missing)

    @property
    def text(self) -> str:
        return "".join(self.deltas)

    @property
    def calls(self) -> list[Mapping[str, Any]]:
        """The calls in the terminal event; none before it."""
        return [
            item
            for item in (self.final or {}).get("output", [])
            if item.get("type") in ("function_call", "custom_tool_call")
        ]

    @property
    def position(self) -> int:
        """The `starting_after` with which a reader resumes."""
        return self.next - 1

    @property
    def tokens(self) -> int:
        """The number of output tokens in the response's usage; 0 before the end."""
        usage = (self.final or {}).get("usage") or {}
        return int(usage.get("output_tokens", 0))

    def feed(self, event: Mapping[str, Any]) -> None:
        """Add an event."""
        number = event.get("sequence_number")
        if not isinstance(number, int):
            return
        if "queue" in event and number == self.next - 1:
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
        self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind = str(event.get("type"))
        if kind.endswith(".delta"):
            self.items.setdefault(event.get("output_index", 0), []).append(event["delta"])
        if kind == DELTA:
            self.deltas.append(event["delta"])
        elif kind == "response.output_text.done":
            self._done_text = event["text"]
        elif kind in TERMINAL_TYPES:
            self.final = event["response"]
        if isinstance(event.get("response"), Mapping):
            self.rid = self.rid or event["response"].get("id", "")

    def problems(self, expected: str | None = None) -> list[str]:
        """Everything that is wrong with a response that has ended.

        `expected` is its required text. The text of a cancelled or failed response must be a prefix
        of it.
        """
        problems = [
            f"{n} {problem}"
            for n, problem in (
                (self.lost, "lost"),
                (self.doubled, "doubled"),
                (self.swapped, "out of order"),
            )
            if n
        ]
        if self.after_end:
            problems.append(f"{self.after_end} after the end")
        if self.final is None:
            return [*problems, "no end"]
        final_text = _final_text(self.final)
        if final_text != self.text:
            problems.append("text differs from the final response")
        for index, item in enumerate(self.final.get("output", [])):
            characters = "".join(self.items.get(index, []))
            if item.get("type") != "message" and _characters(item) != characters:
                problems.append(f"item {index} differs from the final response")
        if self._done_text is not None and self._done_text != self.text:
            problems.append("text differs from output_text.done")
        if expected is not None:
            whole = self.final.get("status") in ("completed", "incomplete")
            if self.text != expected if whole else not expected.startswith(self.text):
                problems.append("text is not what the engine had to write")
        return problems


def _final_text(response: Mapping[str, Any]) -> str:
    messages = (i for i in response.get("output", []) if i.get("type") == "message")
    return "".join(map(_characters, messages))


def _characters(item: Mapping[str, Any]) -> str:
    """All characters of an output item: text, arguments or input."""
    if item.get("type") == "function_call":
        return str(item.get("arguments", ""))
    if item.get("type") == "custom_tool_call":
        return str(item.get("input", ""))
    return "".join(part.get("text", "") for part in item.get("content", []))
