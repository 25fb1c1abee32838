"""What every store of results promises, as a class of tests.

A subclass gives a fixture `opened`: a store without rows. DuckDB:
`tests/unit/pipelines/analytics/test_embedded.py`. ClickHouse: `tests/contract/test_clickhouse.py`.
"""

from __future__ import annotations

import random

from pipelines.analytics import jobs, results, twins
from pipelines.analytics.store import ResultStore
from tailrace.log import Mark, Position
from tests.support import odd_values

T = 1_795_630_860_000
RESULT, TOPIC = jobs.LATENCY_MINUTES, "analytics.latency_minutes"


def change(offset: int, count: int | None, model: str = "m", minute: int = T) -> results.Change:
    values = None if count is None else (count, 1.5, 2.0, None, count, None, 0.25, 3.0)
    return results.Change(0, offset, (minute, model), values)


def row(count: int) -> tuple[twins.Value, ...]:
    values = change(0, count).values
    assert values is not None
    return values


class ResultStoreContract:
    """Tests of any store."""

    def test_a_table_has_the_last_change_of_each_key(self, opened: ResultStore) -> None:
        gone = [change(2, 1, 'o "ö"\n'), change(3, 3, "gone"), change(4, 4)]
        opened.fold(RESULT, TOPIC, 0, [change(0, 1), change(1, 2), *gone], Position(5))
        later = [change(5, None, "gone"), change(6, 5, minute=T + 60_001)]
        opened.fold(RESULT, TOPIC, 0, later, Position(9))
        assert opened.rows(RESULT) == {
            (T, "m"): row(4),
            (T, 'o "ö"\n'): row(1),
            (T + 60_001, "m"): row(5),
        }
        assert opened.positions() == {(TOPIC, 0): Position(9)}

    def test_what_was_folded_before_has_no_effect(self, opened: ResultStore) -> None:
        """Neither a batch that is read again nor the part of one that is."""
        changes = [change(0, 1), change(1, 2), change(2, 3)]
        opened.fold(RESULT, TOPIC, 0, changes, Position(3))
        opened.fold(RESULT, TOPIC, 0, changes[:2], Position(2))
        assert opened.rows(RESULT) == {(T, "m"): row(3)}
        assert opened.positions() == {(TOPIC, 0): Position(3)}
        opened.fold(RESULT, TOPIC, 0, [change(1, None), change(3, 7, "n")], Position(4))
        assert opened.rows(RESULT) == {(T, "m"): row(3), (T, "n"): row(7)}
        assert opened.positions() == {(TOPIC, 0): Position(4)}

    def test_every_result_comes_back_as_it_went_in(self, opened: ResultStore) -> None:
        """Each type, the empty text, the largest number, and values that are missing."""
        filled: dict[str, twins.Value] = {"text": "", "time": T + 1, "count": 2**62, "number": 0.1}
        texts = [each for each in odd_values.TEXTS if each]
        for offset, text in enumerate(texts):
            opened.fold(RESULT, "texts", 0, [change(offset, 1, text)], Position(offset + 1))
        assert {key[1] for key in opened.rows(RESULT)} == set(texts)
        opened.forget()
        for result in jobs.RESULTS:
            full = tuple(filled[kind] for kind in result.columns.values())
            key, values = full[: result.keys], full[result.keys :]
            other = (*key[:-1], f"{key[-1]}x" if isinstance(key[-1], str) else T + 2)
            bare = (None,) * len(values)
            pair = [results.Change(1, 0, key, values), results.Change(1, 1, other, bare)]
            opened.fold(result, result.topic("analytics"), 1, pair, Position(2))
            assert opened.rows(result) == {key: values, other: bare}
        assert len(opened.positions()) == len(jobs.RESULTS)

    def test_whatever_is_read_again_the_table_is_what_the_topic_says(
        self, opened: ResultStore
    ) -> None:
        """Batches of random sizes; after some of them the reader begins anew at an earlier place,
        as a process does whose rows were inserted and whose position was not."""
        drawn = random.Random(7)
        topic = [
            change(n, None if drawn.random() < 0.2 else n, drawn.choice("abcdefgh"))
            for n in range(120)
        ]
        begin = 0
        for _ in range(40):
            end = min(begin + drawn.randint(1, 12), len(topic))
            opened.fold(RESULT, TOPIC, 0, topic[begin:end], Position(end))
            begin = max(0, end - drawn.choice((0, 0, 3, 9)))
        opened.fold(RESULT, TOPIC, 0, topic[begin:], Position(len(topic)))
        assert opened.rows(RESULT) == results.rows(topic)
        assert opened.positions() == {(TOPIC, 0): Position(len(topic))}

    def test_a_position_has_its_mark_and_everything_can_be_forgotten(
        self, opened: ResultStore
    ) -> None:
        at = Position(1, Mark(0, T, "0123abcd"))
        opened.fold(RESULT, TOPIC, 0, [change(0, 1)], at)
        assert opened.positions() == {(TOPIC, 0): at}
        opened.forget()
        assert (opened.positions(), opened.rows(RESULT)) == ({}, {})
        opened.fold(RESULT, TOPIC, 0, [change(0, 2)], Position(1))
        assert (opened.positions(), opened.rows(RESULT)) == (
            {(TOPIC, 0): Position(1)},
            {(T, "m"): row(2)},
        )
