"""The queries of `sql/` in plain Python, over the same records (pure).

They say a second time what the results are, in another way: no state, no order of arrival, whole
lists. Times are milliseconds since the epoch. A result is a map from keys to values, with the
columns of `jobs.Result`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from pipelines.analytics import jobs
from tailrace.protocol import records

MINUTE_MS: Final = 60_000
SECOND_MS: Final = 1_000
PERCENTILES: Final = (0.5, 0.95, 0.99)
# Two ways to add or to weigh doubles differ in the last digits.
TOLERANCE: Final = 1e-9

Value = str | int | float | None
Rows = dict[tuple[Value, ...], tuple[Value, ...]]
_T = TypeVar("_T")
_metered = msgspec.json.Decoder(records.UsageRecord)


@dataclass(frozen=True, slots=True)
class Read:
    """A record of a topic. `written_ms`: broker time of its append."""

    partition: int
    offset: int
    written_ms: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Bill:
    """A usage record, and when it was written."""

    written_ms: int
    metered: records.UsageRecord

    @property
    def minute_ms(self) -> int:
        return self.written_ms // MINUTE_MS * MINUTE_MS

    @property
    def user(self) -> tuple[str, str, str]:
        owner = self.metered.owner
        return owner.issuer, owner.tenant, owner.subject


@dataclass(frozen=True, slots=True)
class Answered:
    """What a pipeline wrote about one answer."""

    written_ms: int
    pipeline: str
    label: str
    input_tokens: int
    output_tokens: int


def bills(found: Iterable[Read]) -> list[Bill]:
    """The usage records, by partition and offset: the first of each response, without garbage."""
    first: dict[str, Bill] = {}
    for read in sorted(found, key=lambda r: (r.partition, r.offset)):
        try:
            metered = _metered.decode(read.value or b"")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        first.setdefault(metered.rid, Bill(read.written_ms, metered))
    return list(first.values())


def answers(found: Iterable[Read], label: str) -> list[Answered]:
    """The answers of a pipeline's output topic. `label`: the member of a structured answer that
    says what it was."""
    out = []
    for read in found:
        try:
            value = msgspec.json.decode(read.value or b"")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        answer, pipeline, usage = value.get("answer"), value.get("pipeline"), value.get("usage", {})
        if not isinstance(answer, str | dict) or pipeline is None or not isinstance(usage, dict):
            continue
        text = answer if isinstance(answer, str) else str(answer.get(label))
        tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        out.append(Answered(read.written_ms, pipeline, text, *tokens))
    return out


def usage_minutes(found: Sequence[Bill]) -> Rows:
    """Tokens and cost per minute, model and tenant."""
    groups = _grouped(found, lambda b: (b.minute_ms, b.metered.model, b.metered.owner.tenant))
    out: Rows = {}
    for key, members in groups.items():
        usage = [b.metered.usage for b in members]
        costs = [b.metered.cost_nano for b in members if b.metered.cost_nano is not None]
        out[key] = (
            len(members),
            sum(u.input_tokens for u in usage),
            sum(u.output_tokens for u in usage),
            sum(u.cached_tokens for u in usage),
            sum(costs),
            len(costs),
        )
    return out


def request_minutes(found: Sequence[Bill]) -> Rows:
    """Responses per minute, with the busiest second."""
    out: Rows = {}
    for key, members in _grouped(found, lambda b: (b.minute_ms,)).items():
        seconds = _grouped(members, lambda b: (b.written_ms // SECOND_MS,))
        failed = sum(b.metered.status == "failed" for b in members)
        peak = max(len(each) for each in seconds.values())
        out[key] = (len(members), failed, len(members) / 60, peak)
    return out


def latency_minutes(found: Sequence[Bill]) -> Rows:
    """Percentiles of the time to the first token, and of the time between tokens."""
    out: Rows = {}
    for key, members in _grouped(found, lambda b: (b.minute_ms, b.metered.model)).items():
        waits = [b.metered.first_token_ms for b in members if b.metered.first_token_ms is not None]
        steps = [b.metered.inter_token_ms for b in members if b.metered.inter_token_ms is not None]
        out[key] = (
            *(len(waits), *(percentile(waits, p) for p in PERCENTILES)),
            *(len(steps), *(percentile(steps, p) for p in PERCENTILES)),
        )
    return out


def sessions(found: Sequence[Bill], gap_s: int) -> Rows:
    """What each user did without a pause of `gap_s` seconds or more, in whole seconds."""
    out: Rows = {}
    for user, members in _grouped(found, lambda b: b.user).items():
        times = [b.written_ms for b in members]
        starts = [
            i
            for i in range(len(times))
            if i == 0 or (times[i] - times[i - 1]) // SECOND_MS >= gap_s
        ]
        for start, stop in zip(starts, [*starts[1:], len(times)], strict=True):
            within = members[start:stop]
            out[*user, within[0].written_ms] = (
                within[-1].written_ms,
                len(within),
                sum(b.metered.usage.input_tokens for b in within),
                sum(b.metered.usage.output_tokens for b in within),
                sum(b.metered.cost_nano or 0 for b in within),
            )
    return out


def answer_minutes(found: Sequence[Answered]) -> Rows:
    """Answers per minute, pipeline and label."""
    groups = _grouped(found, lambda a: (a.written_ms // MINUTE_MS * MINUTE_MS, a.pipeline, a.label))
    return {
        key: (
            len(members),
            sum(a.input_tokens for a in members),
            sum(a.output_tokens for a in members),
        )
        for key, members in groups.items()
    }


def results(
    usage: Sequence[Read], answered: Sequence[Read], *, gap_s: int, label: str
) -> Mapping[str, Rows]:
    """What each topic of `jobs.RESULTS` has to say."""
    found = bills(usage)
    return {
        jobs.USAGE_MINUTES.name: usage_minutes(found),
        jobs.REQUEST_MINUTES.name: request_minutes(found),
        jobs.LATENCY_MINUTES.name: latency_minutes(found),
        jobs.SESSIONS.name: sessions(found, gap_s),
        jobs.ANSWER_MINUTES.name: answer_minutes(answers(answered, label)),
    }


def differences(expected: Rows, found: Rows) -> list[str]:
    """One line for each key whose values differ, or that only one of the two has."""
    out = []
    for key in sorted(expected.keys() | found.keys(), key=repr):
        wanted, there = expected.get(key), found.get(key)
        if wanted is None or there is None or not _alike(wanted, there):
            out.append(f"{key}: expected {wanted}, found {there}")
    return out


def percentile(values: Iterable[float], share: float) -> float | None:
    """Between the two values next to it, in proportion; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _alike(wanted: Sequence[Value], there: Sequence[Value]) -> bool:
    if len(wanted) != len(there):
        return False
    for a, b in zip(wanted, there, strict=True):
        if isinstance(a, float) and isinstance(b, int | float):
            if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                return False
        elif a != b:
            return False
    return True


def _grouped(found: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    out: dict[Any, list[_T]] = defaultdict(list)
    for each in found:
        out[key(each)].append(each)
    return out
