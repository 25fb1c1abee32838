"""C1-C5, R1-R4, L4 and R6: what clients and workers wrote down, against what the log came to
(pure)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tailrace.verify import checks, history, transcript
from tailrace.verify.report import Report, Witness

CLOCK_MS: Final = (
    5.0  # broker and processes of one machine: LogAppendTime is cut to whole milliseconds
)
STREAMING_MS: Final = (
    1_000.0  # its last token came about when the fault did: else the takeover has another cause
)
TERMINAL: Final = frozenset({"response.completed", "response.failed", "response.incomplete"})

ABSENT: Final = frozenset({"response_not_found", "history_lost", 404, 410})

Files = list[tuple[str, list[transcript.Line]]]


@dataclass(slots=True)
class Held:
    """What one watcher holds of one response over all its connections.

    Attributes:
        events: (type, delta) by sequence_number.
        text: what the terminal event says the text is; None before.
        next: the number it waits for.
        at: when (monotonic, s) the last event came, None before the first.
        pause_s: the longest time between two events.
    """

    rid: str
    events: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    text: str | None = None
    tokens: int | None = None
    status: str = ""
    next: int = 0
    at: float | None = None
    pause_s: float = 0.0

    @property
    def deltas(self) -> str | None:
        """The text from its deltas; None if it did not see the response from the beginning."""
        if len(self.events) != self.next:
            return None
        return "".join(delta or "" for _, (_, delta) in sorted(self.events.items()))


def judge(
    out: Report,
    found: history.History,
    outcomes: Mapping[str, checks.Outcome],
    files: Files,
    *,
    settle_s: float,
    fresh_ms: float = 0.0,
) -> None:
    """Add the verdicts of the transcripts to `out`. `fresh_ms`: C4's bound for events appended
    after the healing; 0: none."""
    operations = transcript.operations(files)
    watches = [o for o in operations if o.invoke.op == "watch"]
    healed_ms = max(
        (line.wall * 1000 for _, lines in files for line in lines if line.op == "heal"), default=0.0
    )
    held = _watched(out, watches, outcomes, healed_ms, fresh_ms)
    _agreement(out, held, outcomes)
    _isolation(out, watches, outcomes)
    submits = [o for o in operations if o.invoke.op == "submit"]
    _accepted(out, submits, found, outcomes, settle_s)
    _keys(out, submits)
    _refused(out, submits, outcomes, complete=found.complete)
    _cancels(out, [o for o in operations if o.invoke.op == "cancel"], outcomes)
    _acknowledged(out, (line for _, lines in files for line in lines if line.op == "acked"), found)
    _commits(
        out, (line for _, lines in files for line in lines if line.op == "commit"), found, outcomes
    )
    _recovery(
        out,
        [
            line
            for _, lines in files
            for line in lines
            if line.op == "nemesis" and line.f == "start"
        ],
        outcomes,
    )
    out.figures["connections"] += len(watches)
    out.figures["reconnects"] += len(watches) - len(held)


# ---- watchers
# --------------------------------------------------------------------------------------


def _watched(
    out: Report,
    watches: list[transcript.Operation],
    outcomes: Mapping[str, checks.Outcome],
    healed_ms: float,
    fresh_ms: float,
) -> dict[tuple[str, str], Held]:
    """C1, C2 and C4, connection by connection."""
    watchers: dict[tuple[str, str], Held] = {}
    for o in watches:
        outcome = outcomes.get(o.invoke.rid)
        who = watchers.setdefault(
            (o.invoke.watcher or f"{o.file}:{o.invoke.n}", o.invoke.rid), Held(o.invoke.rid)
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
            and o.invoke.user in (outcome.owner.subject, outcome.owner.key)
        ):
            out.fail("C1", _witness(o, f"refused as {lost}, though it is in the log"))
        if not o.received:
            continue
        out.judged("C1")
        problem = _dense(who, o)
        if problem is not None:
            out.fail("C1", _witness(o, problem))
        if outcome is None or not outcome.whole:
            out.unknown("C2", "watched responses that are not in the input")
            continue
        out.judged("C2")
        problem = _prefix(who, o, outcome)
        if problem is not None:
            out.fail("C2", _witness(o, problem))
        _fresh(out, o, outcome, healed_ms, fresh_ms)
    for who in watchers.values():
        if who.at is not None:
            out.sample("longest gap a watcher saw, ms", who.pause_s * 1000)
    return watchers


def _dense(who: Held, o: transcript.Operation) -> str | None:
    """Numbers are dense from the position asked for, and nothing follows the end."""
    due, ended, problem = o.invoke.after + 1, False, None
    for line in o.received:
        for event in line.events:
            number, kind = int(event[0]), str(event[1])
            if number != due:
                problem = problem or (
                    f"event {number} where {due} is due (asked for everything after "
                    f"{o.invoke.after})"
                )
            if ended:
                problem = problem or f"event {number} behind the end"
            due, ended = number + 1, ended or kind in TERMINAL
            who.events[number] = (kind, event[2] if len(event) > 2 else None)
            who.next = max(who.next, due)
        if line.events:
            who.pause_s = max(who.pause_s, line.mono - who.at) if who.at is not None else 0.0
            who.at = line.mono
        if line.op == "end":
            who.text, who.tokens, who.status = line.text, line.tokens, line.status
            if not ended:
                problem = problem or "the end was announced without a terminal event"
        elif line.op == "close" and line.code == transcript.IN_VAIN:
            problem = problem or "it waited in vain for the end"
    return problem


def _prefix(who: Held, o: transcript.Operation, outcome: checks.Outcome) -> str | None:
    """Every event is the one the log gives this number."""
    for line in o.received:
        for event in line.events:
            number, got = int(event[0]), (str(event[1]), event[2] if len(event) > 2 else None)
            if number >= len(outcome.events):
                return f"event {number} ({got[0]}) follows from nothing in the log"
            if got != outcome.events[number]:
                return (
                    f"event {number} is {_shown(got)}, by the log it is "
                    f"{_shown(outcome.events[number])}"
                )
        if line.op == "end" and line.text is not None and line.text != outcome.text:
            return f"the final text has {len(line.text)} characters, by the log {len(outcome.text)}"
    return None


def _shown(event: tuple[str, str | None]) -> str:
    """Without the text, which may be private."""
    return (
        event[0]
        if event[1] is None
        else (
            f"{event[0]} of {len(event[1])} characters ({transcript.digest(event[1].encode())[:6]})"
        )
    )


def _fresh(
    out: Report, o: transcript.Operation, outcome: checks.Outcome, healed_ms: float, fresh_ms: float
) -> None:
    began_ms = o.invoke.wall * 1000
    for line in o.received:
        for event in line.events[-1:]:  # a batch is as old as its newest event
            number = int(event[0])
            appended = outcome.times[number] if number < len(outcome.times) else 0
            if appended <= began_ms:  # a replay: its age is no delay
                continue
            delay = line.wall * 1000 - appended
            out.sample("behind the append, ms", delay)
            if fresh_ms and appended > healed_ms:
                out.judged("C4")
                if delay > fresh_ms:
                    out.fail(
                        "C4", _witness(o, f"event {number} came {delay:.0f} ms after its append")
                    )


def _agreement(
    out: Report, held: dict[tuple[str, str], Held], outcomes: Mapping[str, checks.Outcome]
) -> None:
    """C3."""
    by_rid: dict[str, list[tuple[str, Held]]] = defaultdict(list)
    for (name, rid), who in held.items():
        if who.status:
            by_rid[rid].append((name, who))
    for rid, group in by_rid.items():
        out.judged("C3", len(group))
        ends = {(who.text, who.tokens, who.status) for _, who in group}
        if len(ends) > 1:
            out.fail(
                "C3",
                Witness(f"{len(group)} watchers saw {len(ends)} different ends", rid, len(group)),
            )
        for name, who in group:
            if who.deltas is not None and who.text is not None and who.deltas != who.text:
                out.fail(
                    "C3", Witness(f"watcher {name}: the deltas are not the final text", rid, 1)
                )
        outcome = outcomes.get(rid)
        if outcome is not None and outcome.whole and outcome.status != group[0][1].status:
            out.fail(
                "C3",
                Witness(
                    f"a watcher saw {group[0][1].status}, the log says {outcome.status or 'open'}",
                    rid,
                    1,
                ),
            )


def _isolation(
    out: Report, watches: list[transcript.Operation], outcomes: Mapping[str, checks.Outcome]
) -> None:
    """C5. A refused attempt of a stranger is judged too: it is what should happen."""
    for o in watches:
        outcome = outcomes.get(o.invoke.rid)
        if outcome is None or outcome.owner is None:
            continue
        out.judged("C5")
        got = any(line.events for line in o.received)
        if got and o.invoke.user not in (outcome.owner.subject, outcome.owner.key):
            out.fail(
                "C5",
                _witness(o, f"{o.invoke.user} got events of a response of {outcome.owner.subject}"),
            )
        other = next((line.rid for line in o.received if line.rid not in ("", o.invoke.rid)), None)
        if other is not None:
            out.fail("C5", _witness(o, f"events of {other} on a watch of another response"))


def _witness(o: transcript.Operation, what: str) -> Witness:
    return Witness(
        f"{what} (watcher {o.invoke.watcher or '-'}, {o.file} operation {o.invoke.n})",
        o.invoke.rid,
        sum(len(line.events) for line in o.received),
    )


# ---- requests
# --------------------------------------------------------------------------------------


def _accepted(
    out: Report,
    submits: list[transcript.Operation],
    found: history.History,
    outcomes: Mapping[str, checks.Outcome],
    settle_s: float,
) -> None:
    """R1: what was acknowledged is there, and has ended."""
    for o in submits:
        if o.done is None or o.done.f != "ok":
            continue
        out.judged("R1")
        outcome = outcomes.get(o.done.rid)
        if outcome is None or not outcome.requests:
            if found.complete:
                out.fail("R1", Witness("acknowledged, and not in the log", o.done.rid, 1))
            else:
                out.unknown("R1", "acknowledged requests that are not in the input")
        elif outcome.status is None:
            if settle_s <= 0 or found.newest - o.done.wall * 1000 >= settle_s * 1000:
                out.fail("R1", Witness("acknowledged, and it never reached an end", o.done.rid, 1))
            else:
                out.note("response still open")


def _keys(out: Report, submits: list[transcript.Operation]) -> None:
    """R2 in the answers."""
    answered: dict[tuple[str, str], set[str]] = defaultdict(set)
    for o in submits:
        if o.invoke.key is not None and o.done is not None and o.done.f == "ok":
            answered[(o.invoke.user, o.invoke.key)].add(o.done.rid)
    for rids in answered.values():
        out.judged("R2")
        if len(rids) > 1:
            out.fail(
                "R2",
                Witness(
                    f"one key was answered with {len(rids)} responses", sorted(rids)[0], len(rids)
                ),
            )


def _refused(
    out: Report,
    submits: list[transcript.Operation],
    outcomes: Mapping[str, checks.Outcome],
    *,
    complete: bool,
) -> None:
    """R3, by the mark that the client put into the request. Tries that share a mark (retries with
    one key) are judged together."""
    in_log: dict[str, set[str]] = defaultdict(set)
    for outcome in outcomes.values():
        if outcome.mark is not None and outcome.requests:
            in_log[outcome.mark].add(outcome.rid)
    tries: dict[str, list[transcript.Operation]] = defaultdict(list)
    for o in submits:
        if o.invoke.mark is not None:
            tries[o.invoke.mark].append(o)
    for mark, group in tries.items():
        out.judged("R3")
        rids, ends = in_log[mark], {o.done.f if o.done else "info" for o in group}
        out.figures["submits nobody knows the outcome of"] += sum(
            o.done is None or o.done.f == "info" for o in group
        )
        if ends == {"fail"} and rids:
            out.fail("R3", Witness("refused, and in the log", sorted(rids)[0], 1))
        elif len(rids) > 1 and (len(group) == 1 or group[0].invoke.key is not None):
            out.fail(
                "R3",
                Witness(f"one request became {len(rids)} responses", sorted(rids)[0], len(rids)),
            )
        elif "ok" in ends and not rids and complete:
            out.fail("R3", Witness(f"accepted, but its mark {mark} is not in the log", "", 1))


def _cancels(
    out: Report, cancels: list[transcript.Operation], outcomes: Mapping[str, checks.Outcome]
) -> None:
    """R4."""
    for o in cancels:
        outcome = outcomes.get(o.invoke.rid)
        if o.done is None or o.done.f != "ok" or outcome is None or not outcome.whole:
            continue
        out.judged("R4")
        if outcome.status is None:
            out.fail(
                "R4", Witness("the cancel was acknowledged, and it never ended", outcome.rid, 1)
            )
        elif o.done.status and o.done.status != outcome.status:
            out.fail(
                "R4",
                Witness(
                    f"the cancel answered {o.done.status}, the log says {outcome.status}",
                    outcome.rid,
                    1,
                ),
            )


# ---- workers
# ---------------------------------------------------------------------------------------


def _acknowledged(out: Report, lines: Iterable[transcript.Line], found: history.History) -> None:
    """L4. An offset of -1 is what a broker says of a duplicate."""
    for line in lines:
        place = (line.topic, line.partition)
        if (
            line.offset < 0
            or found.digests is None
            or line.offset < found.beginnings.get(place, 2**63)
        ):  # not held any more, or not read
            continue
        out.judged("L4")
        there = found.digests.get(place, {}).get(line.offset)
        if there != line.digest:
            what = "nothing lies there" if there is None else "another record lies there"
            out.fail(
                "L4",
                Witness(
                    f"{line.topic}[{line.partition}] acknowledged offset {line.offset}: {what}",
                    line.rid,
                    1,
                ),
            )


def _commits(
    out: Report,
    lines: Iterable[transcript.Line],
    found: history.History,
    outcomes: Mapping[str, checks.Outcome],
) -> None:
    """R6 at every commit that was asked for, whether or not the group took it."""
    ends: dict[tuple[str, int], list[tuple[int, float, str]]] = {}
    for place, offsets in found.places.items():
        ends[place] = [
            (offset, _ended_ms(outcomes.get(rid)), rid)
            for offset, rid in sorted(offsets.items())
            if rid
        ]
    for place, group in itertools.groupby(
        sorted(lines, key=lambda c: (c.topic, c.partition, c.wall)),
        key=lambda c: (c.topic, c.partition),
    ):
        for line in group:
            out.judged("R6")
            early = next(
                (
                    (o, rid)
                    for o, ended, rid in ends.get(place, [])
                    if o < line.offset and ended > line.wall * 1000 + CLOCK_MS
                ),
                None,
            )
            if early is not None:
                out.fail(
                    "R6",
                    Witness(
                        (
                            f"{place[0]}[{place[1]}]: {line.offset} was committed while the "
                            f"request at {early[0]} ran"
                        ),
                        early[1],
                        1,
                    ),
                )
                break


def _ended_ms(outcome: checks.Outcome | None) -> float:
    """Broker time of its end; infinite while open, 0 for what nobody can judge."""
    if outcome is None or not outcome.whole:
        return 0.0
    return float(outcome.times[-1]) if outcome.status is not None else float("inf")


# ---- figures
# ---------------------------------------------------------------------------------------


def _recovery(
    out: Report, faults: list[transcript.Line], outcomes: Mapping[str, checks.Outcome]
) -> None:
    """From the fault on a worker to the next accepted token of what it streamed at that moment."""
    by_target: dict[str, list[transcript.Line]] = defaultdict(list)
    for fault in sorted(faults, key=lambda line: line.wall):
        out.figures[f"fault: {fault.kind}"] += 1
        by_target[fault.target].append(fault)
    for outcome in outcomes.values():
        for t in outcome.takeovers:
            before = [
                fault
                for fault in by_target[t.lost.split("/")[0]]
                if fault.wall * 1000 <= t.claimed_ms
            ]
            if not before or not t.k or not t.next_ms:
                continue
            at_ms = before[-1].wall * 1000
            if t.since_ms <= at_ms and abs(t.last_ms - at_ms) <= STREAMING_MS:
                out.figures[f"takeovers with k > 0 after {before[-1].kind}"] += 1
                out.sample(f"{before[-1].kind} to next token, ms", t.next_ms - at_ms)
