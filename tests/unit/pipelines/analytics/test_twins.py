"""The plain-Python side of the queries."""

from __future__ import annotations

import json
from typing import Any

from pipelines.analytics import jobs, twins
from tailrace.protocol import records
from tests.support import cases

T = 1_700_000_040_000  # a whole minute


def metered(rid: str, user: str = "ada", **more: Any) -> records.UsageRecord:
    owner = records.Owner("https://tests", user, "acme")
    usage = records.Usage(3, 5, 1)
    fields: dict[str, Any] = {"model": "m", "status": "completed", "cost_nano": 10, **more}
    return records.UsageRecord(
        rid=rid, owner=owner, model_rev="r", usage=usage, claims=1, worker="w/1", ts=0, **fields
    )


def read(
    offset: int, written_ms: int, record: records.UsageRecord, partition: int = 0
) -> twins.TopicRecord:
    return twins.TopicRecord(partition, offset, written_ms, records.encode(record))


def bill(rid: str, written_ms: int, user: str = "ada", **more: Any) -> twins.Bill:
    return twins.Bill(written_ms, metered(rid, user, **more))


def test_of_several_copies_the_first_in_its_partition_counts() -> None:
    """Whatever the order in which they are read."""
    found = [
        read(7, T + 5, metered("a", cost_nano=99)),
        read(3, T + 5, metered("a")),
        twins.TopicRecord(0, 4, T, b"garbage"),
        twins.TopicRecord(0, 5, T, None),
        read(1, T + 7, metered("b"), partition=1),
    ]
    kept = twins.bills(found)
    assert [(b.usage_record.rid, b.written_ms, b.usage_record.cost_nano) for b in kept] == [
        ("a", T + 5, 10),
        ("b", T + 7, 10),
    ]


def test_a_minute_has_the_records_that_were_written_in_it() -> None:
    bills = [
        bill("a", T),
        bill("b", T + 59_999, cost_nano=None),
        bill("c", T + 60_000),
        bill("d", T, model="other"),
    ]
    assert twins.usage_minutes(bills) == {
        (T, "m", "acme"): (2, 6, 10, 2, 10, 1),
        (T + 60_000, "m", "acme"): (1, 3, 5, 1, 10, 1),
        (T, "other", "acme"): (1, 3, 5, 1, 10, 1),
    }


def test_a_peak_is_the_busiest_second() -> None:
    bills = [bill("a", T), bill("b", T + 999), bill("c", T + 1_000, status="failed")]
    assert twins.request_minutes(bills) == {(T,): (3, 1, 3 / 60, 2)}


def test_percentiles_leave_out_what_has_no_time() -> None:
    bills = [
        bill("a", T, first_token_ms=10, inter_token_ms=2.0),
        bill("b", T, first_token_ms=20),
        bill("c", T),
    ]
    assert twins.latency_minutes(bills) == {
        (T, "m"): (2, 15.0, 19.5, 19.9, 1, 2.0, 2.0, 2.0),
    }
    assert twins.latency_minutes([bill("c", T)])[T, "m"] == (0, None, None, None) * 2


@cases.each(
    ("values", "share", "found"),
    [([], 0.5, None), ([4], 0.99, 4), ([1, 3], 0.5, 2), ([3, 1, 2], 0.5, 2), ([0, 10], 0.95, 9.5)],
)
def test_a_percentile_lies_between_its_neighbours(
    values: list[float], share: float, found: float | None
) -> None:
    assert twins.percentile(values, share) == found


def test_a_pause_of_the_gap_begins_a_session() -> None:
    """In whole seconds, as the query counts."""
    bills = [
        bill("a", T),
        bill("b", T + 3_999),
        bill("c", T + 7_999),
        bill("d", T + 100, "ben"),
    ]
    ada, ben = ("https://tests", "acme", "ada"), ("https://tests", "acme", "ben")
    assert twins.sessions(bills, 4) == {
        (*ada, T): (T + 3_999, 2, 6, 10, 20),
        (*ada, T + 7_999): (T + 7_999, 1, 3, 5, 10),
        (*ben, T + 100): (T + 100, 1, 3, 5, 10),
    }


def test_a_label_is_a_member_of_a_structured_answer_or_the_text() -> None:
    said: list[object] = [
        {"answer": {"sentiment": "good"}, "pipeline": "p", "usage": {"input_tokens": 2}},
        {"answer": "good", "pipeline": "p", "usage": {"output_tokens": 1}},
        {"answer": "bad", "pipeline": "p"},
        {"answer": "bad"},
        "no object",
    ]
    found = [twins.TopicRecord(0, at, T, json.dumps(each).encode()) for at, each in enumerate(said)]
    assert twins.answer_minutes(twins.answers(found, "sentiment")) == {
        (T, "p", "good"): (2, 2, 1),
        (T, "p", "bad"): (1, 0, 0),
    }


def test_every_difference_is_named() -> None:
    expected: twins.Rows = {("a",): (1, 0.1 + 0.2, None), ("b",): (2,), ("c",): (1.0,)}
    found: twins.Rows = {("a",): (1, 0.3, None), ("c",): (1.001,), ("d",): (0,)}
    named = [line.split(":")[0] for line in twins.differences(expected, found)]
    assert named == ["('b',)", "('c',)", "('d',)"]
    assert twins.differences(expected, dict(expected)) == []
    assert len(twins.differences({("a",): (1,)}, {("a",): (1, 2)})) == 1


def test_each_topic_of_results_has_a_twin_with_its_columns() -> None:
    usage = [read(0, T, metered("a", first_token_ms=1, inter_token_ms=1.0))]
    answered = [twins.TopicRecord(0, 0, T, b'{"answer":"x","pipeline":"p"}')]
    made = twins.results(usage, answered, gap_s=4, label="l")
    assert set(made) == {result.name for result in jobs.RESULTS}
    for result in jobs.RESULTS:
        ((key, values),) = made[result.name].items()
        assert (len(key), len(key) + len(values)) == (result.keys, len(result.columns))
