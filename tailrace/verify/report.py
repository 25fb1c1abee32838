"""Verdicts of the checks, with counterexamples, and the figures of a run (pure)."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

CHECKS: Final = {
    "L1": "the product's fold and the judge's own accept the same sequence",
    "L2": "every accepted token continues exactly the accepted prefix",
    "L3": "dense indices, one end, END.seq = n, nothing behind it",
    "L4": "every acknowledged append lies at its offset, byte for byte",
    "L5": "the text is the text of the ids, and valid",
    "L6": "usage is the accepted tokens, billed once",
    "L7": "attempts are bounded; failed by attempts has one dead letter",
    "L8": "replicas agree up to the high watermark",
    "L9": "what is kept of a stored response is what was accepted, once",
    "L10": "a fork begins with its source's tokens",
    "L11": "a turn has one place in its conversation, behind one that ended",
    "L12": "the end of a stored response is told once, as the log has it",
    "L13": "a prompt lacks only messages that may be left out, as the first claim says",
    "L14": "another model answers only in place of the one that was asked for, and is named",
    "L15": "a text is continued as it was, and only one that was cut short",
    "L16": "an answer that is given again is the one that it names, and its bill says so",
    "L17": "another model continues the text only where it may, in place of the one before it",
    "L18": "a hedged claim is one for each response, against an owner of its pool and model",
    "C1": "sequence_number is dense from the position asked for",
    "C2": "what a watcher holds is a prefix of the log's events",
    "C3": "watchers that saw the end saw the same one",
    "C4": "events arrive soon after their append",
    "C5": "no user gets events of another's response",
    "A1": "cancelled or deleted by the owner; the key names the record's response",
    "A2": "every record has the tag of a service that may write it",
    "R1": "an accepted request reaches exactly one end",
    "R2": "one idempotency key, one response",
    "R3": "a refused request is not in the log",
    "R4": "cancelled, or ended before the cancel",
    "R5": "expired only after its time to live, with no tokens",
    "R6": "a commit never passes unfinished work",
}
MAX_COUNTEREXAMPLES: Final = 3
EXCERPT: Final = 12


class Verdict(enum.Enum):
    """The verdict of one check. NOT_JUDGED: the input has nothing to judge, which is not a
    defect."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNKNOWN = "unknown"
    NOT_JUDGED = "-"


@dataclass(frozen=True, slots=True)
class Counterexample:
    """What shows that a check failed.

    Attributes:
        what: the contradiction, in one line.
        rid: the response; empty if the failure is about no single response.
        size: how much one must read to see it. The smallest counterexamples are reported.
        excerpt: records around it, one line each, without text.
    """

    what: str
    rid: str = ""
    size: int = 0
    excerpt: tuple[str, ...] = ()


@dataclass(slots=True)
class Result:
    """The result of one check.

    Attributes:
        count: how many cases were judged.
        failed: how many of them contradict the check.
        counterexamples: the smallest ones, smallest first.
        unknown: reason -> how many cases could not be judged.
    """

    count: int = 0
    failed: int = 0
    counterexamples: list[Counterexample] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> Verdict:
        if self.failed:
            return Verdict.FAIL
        if self.unknown:
            return Verdict.UNKNOWN
        return Verdict.PASS if self.count else Verdict.NOT_JUDGED


@dataclass(slots=True)
class Report:
    """All checks of a run, and its figures.

    Attributes:
        results: by check.
        figures: counts.
        notes: counts of facts that are worth knowing and neither right nor wrong.
        samples: measured values by name.
    """

    results: dict[str, Result] = field(default_factory=lambda: {name: Result() for name in CHECKS})
    figures: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def count(self, check: str, n: int = 1) -> None:
        """Count `n` more judged cases."""
        self.results[check].count += n

    def fail(self, check: str, counterexample: Counterexample) -> None:
        """Count a case that contradicts the check."""
        result = self.results[check]
        result.failed += 1
        result.counterexamples = sorted(
            [*result.counterexamples, counterexample], key=lambda w: w.size
        )[:MAX_COUNTEREXAMPLES]

    def unknown(self, check: str, why: str) -> None:
        """Count a case that cannot be judged."""
        self.results[check].unknown[why] += 1

    def note(self, text: str, n: int = 1) -> None:
        """Count something worth knowing that is neither right nor wrong."""
        self.notes[text] += n

    def sample(self, name: str, value: float) -> None:
        """Add one measured value."""
        self.samples.setdefault(name, []).append(value)

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run: fail beats unknown, which beats pass. Nothing judged: unknown."""
        verdicts = {r.verdict for r in self.results.values()}
        for one in (Verdict.FAIL, Verdict.UNKNOWN):
            if one in verdicts:
                return one
        return Verdict.PASS if Verdict.PASS in verdicts else Verdict.UNKNOWN

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 inconclusive."""
        return {Verdict.PASS: 0, Verdict.FAIL: 1}.get(self.verdict, 2)

    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [name for name, r in self.results.items() if r.failed]

    def absorb(self, other: Report) -> None:
        """Add the report of another part of the same run."""
        for name, theirs in other.results.items():
            own = self.results[name]
            own.count += theirs.count
            own.failed += theirs.failed
            own.counterexamples = sorted(
                [*own.counterexamples, *theirs.counterexamples], key=lambda w: w.size
            )[:MAX_COUNTEREXAMPLES]
            own.unknown += theirs.unknown
        self.figures += other.figures
        self.notes += other.notes
        for name, values in other.samples.items():
            self.samples.setdefault(name, []).extend(values)

    def as_json(self) -> dict[str, Any]:
        """The whole report, for programs."""
        return {
            "verdict": self.verdict.value,
            "checks": {
                name: {
                    "what": CHECKS[name],
                    "verdict": r.verdict.value,
                    "judged": r.count,
                    "failed": r.failed,
                    "unknown": dict(r.unknown),
                    "counterexamples": [
                        {"rid": w.rid, "what": w.what, "records": list(w.excerpt)}
                        for w in r.counterexamples
                    ],
                }
                for name, r in self.results.items()
            },
            "figures": dict(self.figures)
            | {name: summary(values) for name, values in self.samples.items()},
            "notes": dict(self.notes),
        }

    def lines(self) -> list[str]:
        """The report for people: the table, then counterexamples, then figures."""
        out = [f"{'CHECK':<6}{'VERDICT':<9}{'JUDGED':>8} {'FAILED':>7}  WHAT"]
        out += [
            f"{name:<6}{r.verdict.value:<9}{r.count:>8} {r.failed:>7}  {CHECKS[name]}"
            for name, r in self.results.items()
        ]
        for name, r in self.results.items():
            for counterexample in r.counterexamples:
                out += [
                    "",
                    f"{name} failed: {counterexample.what}"
                    + (f" [{counterexample.rid}]" if counterexample.rid else ""),
                ]
                out += [f"    {line}" for line in counterexample.excerpt]
            out += [f"{name} unknown: {n} x {why}" for why, n in r.unknown.items()]
        out.append("")
        out += [f"{name}: {n}" for name, n in sorted(self.figures.items())]
        out += [f"{name}: {figure(values)}" for name, values in sorted(self.samples.items())]
        out += [f"note: {n} x {text}" for text, n in sorted(self.notes.items())]
        out += ["", f"verdict: {self.verdict.value}"]
        return out


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` of all values does not exceed."""
    sorted_values = sorted(values)
    return sorted_values[max(0, math.ceil(len(sorted_values) * q) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "n": len(values),
        "p50": quantile(values, 0.5),
        "p99": quantile(values, 0.99),
        "max": max(values),
    }


def figure(values: Sequence[float]) -> str:
    """The summary of values in one line."""
    s = summary(values)
    return f"p50 {s['p50']:.0f}, p99 {s['p99']:.0f}, max {s['max']:.0f} (n {len(values)})"
