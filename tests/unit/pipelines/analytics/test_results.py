"""Records of results, as they are in Kafka."""

from __future__ import annotations

import json
from typing import Any

from pipelines.analytics import jobs, results
from tailrace.log import Record
from tests.support import odd_values

MINUTE = "2026-11-25T18:21:00Z"
MS = 1_795_630_860_000


def record(key: object, value: object, offset: int = 0, partition: int = 0) -> Record:
    return Record("t", partition, offset, 0, _bytes(key), _bytes(value), ())


def _bytes(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def test_a_record_is_a_key_and_values_with_times_in_ms() -> None:
    said = {"minute": MINUTE, "responses": 3, "failed": 1, "per_second": 0.05, "peak": 2}
    change = results.parse_change(jobs.REQUEST_MINUTES, record({"minute": MINUTE}, said, 7))
    assert change == results.Change(0, 7, (MS,), (3, 1, 0.05, 2))


def test_fractions_of_a_second_are_kept() -> None:
    key = {"issuer": "i", "tenant": "", "subject": "s", "began": "2026-11-25T18:21:00.314Z"}
    change = results.parse_change(jobs.SESSIONS, record(key, None))
    assert change == results.Change(0, 0, ("i", "", "s", MS + 314), None)


def test_garbage_is_no_change() -> None:
    for key, value in (({}, None), (b"{", None), ({"minute": "x"}, None), ({"minute": MINUTE}, [])):
        assert results.parse_change(jobs.REQUEST_MINUTES, record(key, value)) is None


def change(offset: int, key: str, responses: int | None) -> results.Change:
    values = None if responses is None else (responses, 0, 0.0, 0)
    return results.Change(0, offset, (key,), values)


def test_the_last_change_of_a_key_counts() -> None:
    changes = [change(0, "a", 1), change(1, "b", 1), change(2, "a", 2), change(3, "b", None)]
    assert results.rows(changes) == {("a",): (2, 0, 0.0, 0)}


def test_a_count_that_was_taken_back_is_named() -> None:
    changes = [change(0, "a", 2), change(1, "b", 1), change(2, "a", 2)]
    assert results.regressions(jobs.REQUEST_MINUTES, changes) == []
    (line,) = results.regressions(jobs.REQUEST_MINUTES, [*changes, change(3, "a", 1)])
    assert line == "('a',) at 3: 2, then 1"
    assert len(results.regressions(jobs.REQUEST_MINUTES, [*changes, change(3, "b", None)])) == 1


def test_a_change_has_values_that_every_store_can_hold() -> None:
    """A count of more than 64 bits, or a text in its place, ended the fold into DuckDB, again after
    each restart."""
    said = {"minute": MINUTE, "responses": 3, "failed": 1, "per_second": 0.05, "peak": 2}
    wrong: dict[str, list[Any]] = {
        "responses": [2**63, -(2**63) - 1, "3", 1.5, True, [3], {}],
        "per_second": ["0.05", 2**70, True, []],
        "minute": ["1899-12-31T23:59:59Z", "2300-01-01T00:00:00Z", 3, None],
    }
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        odd = said | {name: value}
        source = record({"minute": odd["minute"]}, odd)
        assert results.parse_change(jobs.REQUEST_MINUTES, source) is None, (name, value)
    bare = dict.fromkeys(said) | {"minute": MINUTE}
    change = results.parse_change(jobs.REQUEST_MINUTES, record({"minute": MINUTE}, bare))
    assert change == results.Change(0, 0, (MS,), (None,) * 4)
    for odd_record in odd_values.records():
        for result in jobs.RESULTS:
            assert results.parse_change(result, odd_record) is None
