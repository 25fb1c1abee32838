"""The queries of `sql/` in plain Python, over the same records (pure).

They compute the same results in another way: no state, no order of arrival, whole lists. Times are
milliseconds since the epoch. A result is a map from keys to values, with the columns of
`jobs.Result`.
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
_decoder = msgspec.json.Decoder(records.UsageRecord)


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of a topic. `written_ms`: broker time of its append."""

    partition: int
    offset: int
    written_ms: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Bill:
    """A usage record, and when it was written."""

    written_ms: int
    usage_record: records.UsageRecord

    @property
    def minute_ms(self) -> int:
        return self.written_ms // MINUTE_MS * MINUTE_MS

    @property
    def user(self) -> tuple[str, str, str]:
        owner = self.usage_record.owner
        return owner.issuer, owner.tenant, owner.subject


@dataclass(frozen=True, slots=True)
class PipelineAnswer:
    """A pipeline's record of one answer."""

    written_ms: int
    pipeline: str
    label: str
    input_tokens: int
    output_tokens: int


def bills(topic_records: Iterable[TopicRecord]) -> list[Bill]:
    """The usage records, by partition and offset: the first of each response, without garbage."""
    first: dict[str, Bill] = {}
    for record in sorted(topic_records, key=lambda r: (r.partition, r.offset)):
        try:
            usage = _decoder.decode(record.value or b"")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        first.setdefault(usage.rid, Bill(record.written_ms, usage))
    return list(first.values())


def answers(records: Iterable[TopicRecord], label: str) -> list[PipelineAnswer]:
    """The answers of a pipeline's output topic. `label`: the member of a structured answer to count
    by."""
    out = []
    for record in records:
        try:
            value = msgspec.json.decode(record.value or b"")
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        answer, pipeline, usage = value.get("answer"), value.get("pipeline"), value.get("usage", {})
        if not isinstance(answer, str | dict) or pipeline is None or not isinstance(usage, dict):
            continue
        text = answer if isinstance(answer, str) else str(answer.get(label))
        tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        out.append(PipelineAnswer(record.written_ms, pipeline, text, *tokens))
    return out


def usage_minutes(bills: Sequence[Bill]) -> Rows:
    """Tokens and cost per minute, model and tenant."""
    groups = _group(
        bills, lambda b: (b.minute_ms, b.usage_record.model, b.usage_record.owner.tenant)
    )
    out: Rows = {}
    for key, members in groups.items():
        usage = [b.usage_record.usage for b in members]
        costs = [b.usage_record.cost_nano for b in members if b.usage_record.cost_nano is not None]
        out[key] = (
            len(members),
            sum(u.input_tokens for u in usage),
            sum(u.output_tokens for u in usage),
            sum(u.cached_tokens for u in usage),
            sum(costs),
            len(costs),
        )
    return out


def request_minutes(bills: Sequence[Bill]) -> Rows:
    """Responses per minute, with the busiest second."""
    out: Rows = {}
    for key, members in _group(bills, lambda b: (b.minute_ms,)).items():
        seconds = _group(members, lambda b: (b.written_ms // SECOND_MS,))
        failed = sum(b.usage_record.status == "failed" for b in members)
        peak = max(len(each) for each in seconds.values())
        out[key] = (len(members), failed, len(members) / 60, peak)
    return out


def latency_minutes(bills: Sequence[Bill]) -> Rows:
    """Percentiles of the time to the first token, and of the time between tokens."""
    out: Rows = {}
    for key, members in _group(bills, lambda b: (b.minute_ms, b.usage_record.model)).items():
        waits = [
            b.usage_record.first_token_ms
            for b in members
            if b.usage_record.first_token_ms is not None
        ]
        steps = [
            b.usage_record.inter_token_ms
            for b in members
            if b.usage_record.inter_token_ms is not None
        ]
        out[key] = (
            *(len(waits), *(percentile(waits, p) for p in PERCENTILES)),
            *(len(steps), *(percentile(steps, p) for p in PERCENTILES)),
        )
    return out


def sessions(bills: Sequence[Bill], gap_s: int) -> Rows:
    """The sessions of each user: requests without a pause of `gap_s` whole seconds or more."""
    out: Rows = {}
    for user, members in _group(bills, lambda b: b.user).items():
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
                sum(b.usage_record.usage.input_tokens for b in within),
                sum(b.usage_record.usage.output_tokens for b in within),
                sum(b.usage_record.cost_nano or 0 for b in within),
            )
    return out


def answer_minutes(answers: Sequence[PipelineAnswer]) -> Rows:
    """Answers per minute, pipeline and label."""
    groups = _group(answers, lambda a: (a.written_ms // MINUTE_MS * MINUTE_MS, a.pipeline, a.label))
    return {
        key: (
            len(members),
            sum(a.input_tokens for a in members),
            sum(a.output_tokens for a in members),
        )
        for key, members in groups.items()
    }


def results(
    usage: Sequence[TopicRecord], answer_records: Sequence[TopicRecord], *, gap_s: int, label: str
) -> Mapping[str, Rows]:
    """The expected content of each topic of `jobs.RESULTS`."""
    usage_bills = bills(usage)
    return {
        jobs.USAGE_MINUTES.name: usage_minutes(usage_bills),
        jobs.REQUEST_MINUTES.name: request_minutes(usage_bills),
        jobs.LATENCY_MINUTES.name: latency_minutes(usage_bills),
        jobs.SESSIONS.name: sessions(usage_bills, gap_s),
        jobs.ANSWER_MINUTES.name: answer_minutes(answers(answer_records, label)),
    }


def differences(expected: Rows, actual: Rows) -> list[str]:
    """One line for each key whose values differ, or that only one of the two has."""
    out = []
    for key in sorted(expected.keys() | actual.keys(), key=repr):
        expected_values, actual_values = expected.get(key), actual.get(key)
        if (
            expected_values is None
            or actual_values is None
            or not _alike(expected_values, actual_values)
        ):
            out.append(f"{key}: expected {expected_values}, found {actual_values}")
    return out


def percentile(values: Iterable[float], share: float) -> float | None:
    """Between the two values next to it, in proportion; None of nothing."""
    ascending = sorted(values)
    if not ascending:
        return None
    place = share * (len(ascending) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (place - low)


def _alike(expected: Sequence[Value], actual: Sequence[Value]) -> bool:
    if len(expected) != len(actual):
        return False
    for a, b in zip(expected, actual, strict=True):
        if isinstance(a, float) and isinstance(b, int | float):
            if not math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                return False
        elif a != b:
            return False
    return True


def _group(items: Iterable[_T], key: Callable[[_T], Any]) -> dict[Any, list[_T]]:
    out: dict[Any, list[_T]] = defaultdict(list)
    for each in items:
        out[key(each)].append(each)
    return out
