"""C1-C5: the events that watchers received, against the log (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.protocol import events
from tailrace.verify import transcript
from tailrace.verify.outcome import Outcome
from tailrace.verify.report import Counterexample, Report

# Answers that say a response does not exist: error codes and HTTP statuses.
ABSENT: Final = frozenset({"response_not_found", "history_lost", 404, 410})


@dataclass(slots=True)
class WatcherText:
    """What one watcher holds of one response, over all its connections.

    Attributes:
        events: (type, delta) by sequence_number.
        digests: of whole events, by sequence_number, if the watcher recorded them.
        items: of the terminal event; None before it, or where the watcher did not write them down.
        text: the text of the terminal event; None before it.
        tokens: the token count of the terminal event; None before it.
        status: the final status; empty before the end.
        next: the sequence_number that it waits for.
        at: arrival (monotonic, s) of the last event; None before the first.
        pause_s: the longest time between two events.
    """

    rid: str
    events: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    items: list[list[str]] | None = None
    text: str | None = None
    tokens: int | None = None
    status: str = ""
    next: int = 0
    at: float | None = None
    pause_s: float = 0.0

    @property
    def deltas(self) -> str | None:
        """The text of its deltas; None if it did not see the response from the beginning."""
        if len(self.events) != self.next:
            return None
        return "".join(delta or "" for _, (_, delta) in sorted(self.events.items()))


def check_watches(
    out: Report,
    watches: list[transcript.Operation],
    outcomes: Mapping[str, Outcome],
    healed_ms: float,
    late_ms: float,
) -> dict[tuple[str, str], WatcherText]:
    """C1, C2 and C4, connection by connection. Returns what each watcher holds at the end.

    `late_ms`: an event that arrives this long after its append fails C4; 0: no bound.
    """
    watchers: dict[tuple[str, str], WatcherText] = {}
    for o in watches:
        outcome = outcomes.get(o.invoke.rid)
        who = watchers.setdefault(
            (o.invoke.watcher or f"{o.file}:{o.invoke.n}", o.invoke.rid), WatcherText(o.invoke.rid)
        )
        lost = (
            o.done.code
            if o.done is not None and o.done.f == "fail" and outcome is not None and outcome.whole
            else None
        )
        if (
            lost in ABSENT
            and outcome is not None
            and outcome.owner is not None
            and not outcome.withdrawn
            and o.invoke.user in (outcome.owner.subject, outcome.owner.key)
        ):
            out.fail("C1", _counterexample(o, f"refused as {lost}, though it is in the log"))
        if not o.received:
            continue
        out.count("C1")
        problem = _dense(who, o)
        if problem is not None:
            out.fail("C1", _counterexample(o, problem))
        if outcome is None or not outcome.whole:
            out.unknown("C2", "watched responses that are not in the input")
            continue
        out.count("C2")
        problem = _prefix(who, o, outcome)
        if problem is not None:
            out.fail("C2", _counterexample(o, problem))
        _delay(out, o, outcome, healed_ms, late_ms)
    for who in watchers.values():
        if who.at is not None:
            out.sample("longest gap a watcher saw, ms", who.pause_s * 1000)
    return watchers


def _dense(who: WatcherText, o: transcript.Operation) -> str | None:
    """C1: numbers are dense from the requested position, and nothing follows the end."""
    expected, ended, problem = o.invoke.after + 1, False, None
    for line in o.received:
        for event in line.events:
            number, kind = int(event[0]), str(event[1])
            if number != expected:
                problem = problem or (
                    f"event {number} where {expected} is due (asked for everything after "
                    f"{o.invoke.after})"
                )
            if ended:
                problem = problem or f"event {number} behind the end"
            expected, ended = number + 1, ended or kind in events.TERMINAL_TYPES
            who.events[number] = (kind, event[2] if len(event) > 2 else None)
            if len(event) > 3:
                who.digests[number] = str(event[3])
            who.next = max(who.next, expected)
        if line.events:
            who.pause_s = max(who.pause_s, line.mono - who.at) if who.at is not None else 0.0
            who.at = line.mono
        if line.op == "end":
            who.text, who.tokens, who.status = line.text, line.tokens, line.status
            who.items = line.items
            if not ended:
                problem = problem or "the end was announced without a terminal event"
        elif line.op == "close" and line.code == transcript.IN_VAIN:
            problem = problem or "it waited for an end that did not come"
    return problem


def _prefix(who: WatcherText, o: transcript.Operation, outcome: Outcome) -> str | None:
    """C2: every event is the one that the log gives this number."""
    for line in o.received:
        for event in line.events:
            number, event_ = int(event[0]), (str(event[1]), event[2] if len(event) > 2 else None)
            if number >= len(outcome.events):
                return f"event {number} ({event_[0]}) follows from nothing in the log"
            if event_ != outcome.events[number]:
                return (
                    f"event {number} is {_printable(event_)}, by the log it is "
                    f"{_printable(outcome.events[number])}"
                )
        if line.op == "end" and line.text is not None and line.text != outcome.text:
            return f"the final text has {len(line.text)} characters, by the log {len(outcome.text)}"
    return None


def _printable(event: tuple[str, str | None]) -> str:
    """Describes an event without its text, which may be private."""
    return (
        event[0]
        if event[1] is None
        else (
            f"{event[0]} of {len(event[1])} characters ({transcript.digest(event[1].encode())[:6]})"
        )
    )


def _delay(
    out: Report, o: transcript.Operation, outcome: Outcome, healed_ms: float, late_ms: float
) -> None:
    """C4 for events that were appended after the watch began: a replayed event is old."""
    began_ms = o.invoke.wall * 1000
    for line in o.received:
        for event in line.events[-1:]:  # a batch is as old as its newest event
            number = int(event[0])
            appended_ms = outcome.times[number] if number < len(outcome.times) else 0
            if appended_ms <= began_ms:
                continue
            delay = line.wall * 1000 - appended_ms
            out.sample("behind the append, ms", delay)
            if late_ms and appended_ms > healed_ms:
                out.count("C4")
                if delay > late_ms:
                    out.fail(
                        "C4",
                        _counterexample(o, f"event {number} came {delay:.0f} ms after its append"),
                    )


def check_agreement(
    out: Report, texts: dict[tuple[str, str], WatcherText], outcomes: Mapping[str, Outcome]
) -> None:
    """C3: watchers that saw the end saw the same end, and their deltas are its text. Events of one
    number are equal in every byte, also for who saw no end; the items are those of the log."""
    _check_bytes(out, texts)
    by_rid: dict[str, list[tuple[str, WatcherText]]] = defaultdict(list)
    for (name, rid), who in texts.items():
        if who.status:
            by_rid[rid].append((name, who))
    for rid, group in by_rid.items():
        out.count("C3", len(group))
        ends = {(who.text, who.tokens, who.status) for _, who in group}
        if len(ends) > 1:
            out.fail(
                "C3",
                Counterexample(
                    f"{len(group)} watchers saw {len(ends)} different ends", rid, len(group)
                ),
            )
        for name, who in group:
            if who.deltas is not None and who.text is not None and who.deltas != who.text:
                out.fail(
                    "C3",
                    Counterexample(f"watcher {name}: the deltas are not the final text", rid, 1),
                )
        outcome = outcomes.get(rid)
        if outcome is None or not outcome.whole:
            continue
        by_log = [list(item) for item in outcome.items]
        for name, who in group:
            if who.items is not None and who.items != by_log:
                message = f"watcher {name}: the final items are not those of the log"
                out.fail("C3", Counterexample(message, rid, 1))
        if outcome.status != group[0][1].status:
            out.fail(
                "C3",
                Counterexample(
                    f"a watcher saw {group[0][1].status}, the log says {outcome.status or 'open'}",
                    rid,
                    1,
                ),
            )


def _check_bytes(out: Report, texts: dict[tuple[str, str], WatcherText]) -> None:
    first: dict[tuple[str, int], tuple[str, str]] = {}
    for (name, rid), who in texts.items():
        for number, digest in who.digests.items():
            other, same = first.setdefault((rid, number), (name, digest))
            if digest != same:
                message = f"watchers {other} and {name} got different events {number}"
                out.fail("C3", Counterexample(message, rid, 2))
                break


def check_isolation(
    out: Report, watches: list[transcript.Operation], outcomes: Mapping[str, Outcome]
) -> None:
    """C5. A stranger's refused attempt is judged too: the refusal is correct."""
    for o in watches:
        outcome = outcomes.get(o.invoke.rid)
        if outcome is None or outcome.owner is None:
            continue
        out.count("C5")
        has_events = any(line.events for line in o.received)
        if has_events and o.invoke.user not in (outcome.owner.subject, outcome.owner.key):
            out.fail(
                "C5",
                _counterexample(
                    o, f"{o.invoke.user} got events of a response of {outcome.owner.subject}"
                ),
            )
        foreign_rid = next(
            (line.rid for line in o.received if line.rid not in ("", o.invoke.rid)), None
        )
        if foreign_rid is not None:
            out.fail(
                "C5", _counterexample(o, f"events of {foreign_rid} on a watch of another response")
            )


def _counterexample(o: transcript.Operation, message: str) -> Counterexample:
    return Counterexample(
        f"{message} (watcher {o.invoke.watcher or '-'}, {o.file} operation {o.invoke.n})",
        o.invoke.rid,
        sum(len(line.events) for line in o.received),
    )
