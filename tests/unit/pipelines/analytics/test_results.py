"""Records of results, as they are in Kafka."""

from __future__ import annotations

import dataclasses
import json

import aiokafka

from pipelines.analytics import jobs, results

MINUTE = "2026-11-25T18:21:00Z"
MS = 1_795_630_860_000


def record(
    key: object, value: object, offset: int = 0, partition: int = 0
) -> aiokafka.ConsumerRecord:
    fields = dict.fromkeys(f.name for f in dataclasses.fields(aiokafka.ConsumerRecord))
    fields |= {"topic": "t", "partition": partition, "offset": offset}
    fields |= {"key": _bytes(key), "value": _bytes(value)}
    return aiokafka.ConsumerRecord(**fields)


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def test_a_record_is_a_key_and_values_with_times_in_ms() -> None:
    said = {"minute": MINUTE, "responses": 3, "failed": 1, "per_second": 0.05, "peak": 2}
    found = results.decoded(jobs.REQUEST_MINUTES, record({"minute": MINUTE}, said, 7))
    assert found == results.Change(0, 7, (MS,), (3, 1, 0.05, 2))


def test_fractions_of_a_second_are_kept() -> None:
    key = {"issuer": "i", "tenant": "", "subject": "s", "began": "2026-11-25T18:21:00.314Z"}
    found = results.decoded(jobs.SESSIONS, record(key, None))
    assert found == results.Change(0, 0, ("i", "", "s", MS + 314), None)


def test_garbage_is_no_change() -> None:
    for key, value in (({}, None), (b"{", None), ({"minute": "x"}, None), ({"minute": MINUTE}, [])):
        assert results.decoded(jobs.REQUEST_MINUTES, record(key, value)) is None


def change(offset: int, key: str, responses: int | None) -> results.Change:
    values = None if responses is None else (responses, 0, 0.0, 0)
    return results.Change(0, offset, (key,), values)


def test_the_last_change_of_a_key_counts() -> None:
    found = [change(0, "a", 1), change(1, "b", 1), change(2, "a", 2), change(3, "b", None)]
    assert results.rows(found) == {("a",): (2, 0, 0.0, 0)}


def test_a_count_that_was_taken_back_is_named() -> None:
    found = [change(0, "a", 2), change(1, "b", 1), change(2, "a", 2)]
    assert results.taken_back(jobs.REQUEST_MINUTES, found) == []
    (line,) = results.taken_back(jobs.REQUEST_MINUTES, [*found, change(3, "a", 1)])
    assert line == "('a',) at 3: 2, then 1"
    assert len(results.taken_back(jobs.REQUEST_MINUTES, [*found, change(3, "b", None)])) == 1
