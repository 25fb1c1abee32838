"""L4 and R6: what workers wrote down, against the log; and how fast takeovers were (pure)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.verify import history, transcript
from tailrace.verify.outcome import Outcome
from tailrace.verify.report import Counterexample, Report

# Broker and processes share one machine's clock, but LogAppendTime is cut to whole milliseconds.
CLOCK_MS: Final = 5.0
# A takeover belongs to a fault only if the last token came about when the fault did.
STREAMING_MS: Final = 1_000.0


def check_acknowledgements(
    out: Report, lines: Iterable[transcript.Line], log_history: history.History
) -> None:
    """L4. A broker answers offset -1 for a duplicate; such lines are skipped."""
    for line in lines:
        place = (line.topic, line.partition)
        if (
            line.offset < 0
            or log_history.digests is None
            or line.offset < log_history.beginnings.get(place, 2**63)  # retention, or not read
        ):
            continue
        out.count("L4")
        there = log_history.digests.get(place, {}).get(line.offset)
        if there != line.digest:
            difference = "nothing lies there" if there is None else "another record lies there"
            out.fail(
                "L4",
                Counterexample(
                    f"{line.topic}[{line.partition}] acknowledged offset {line.offset}: "
                    f"{difference}",
                    line.rid,
                    1,
                ),
            )


def check_commits(
    out: Report,
    lines: Iterable[transcript.Line],
    log_history: history.History,
    outcomes: Mapping[str, Outcome],
) -> None:
    """R6 at every commit that a worker requested, accepted or not."""
    ends: dict[tuple[str, int], list[tuple[int, float, str]]] = {}
    for place, offsets in log_history.places.items():
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
            out.count("R6")
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
                    Counterexample(
                        (
                            f"{place[0]}[{place[1]}]: {line.offset} was committed while the "
                            f"request at {early[0]} ran"
                        ),
                        early[1],
                        1,
                    ),
                )
                break


def _ended_ms(outcome: Outcome | None) -> float:
    """Broker time of its end in ms; infinite while open, 0 if it cannot be judged."""
    if outcome is None or not outcome.whole:
        return 0.0
    return float(outcome.times[-1]) if outcome.status is not None else float("inf")


def measure_recovery(
    out: Report, faults: list[transcript.Line], outcomes: Mapping[str, Outcome]
) -> None:
    """Measure the time from a fault on a worker to the next accepted token of its streams."""
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
