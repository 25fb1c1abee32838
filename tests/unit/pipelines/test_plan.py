"""What rows would cost, before anything is asked."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pipelines import definition, plan
from pipelines.counts import Counts
from pipelines.plan import Sample
from pipelines.rows import Rows
from tailrace.log import Record


def pipeline(**changes: Any) -> definition.Pipeline:
    told = {
        "name": "small",
        "input": {"topic": "in"},
        "where": "record.wanted",
        "prompt": {"user": "{{ record.text }}"},
        "output": {"topic": "out"},
        "dead_letters": {"topic": "dead"},
    }
    return definition.parse(yaml.safe_dump({**told, **changes}))


def record(offset: int, value: bytes) -> Record:
    return Record("in", 0, offset, 0, b"", value, ())


def test_a_sample_reads_as_a_runner_does() -> None:
    records = [
        record(0, b'{"wanted": true, "text": "four"}'),
        record(1, b'{"wanted": true, "text": "eight..."}'),
        record(2, b'{"wanted": false}'),
        record(3, b'{"wanted": true}'),
        record(4, b"{"),
    ]
    sample = plan.sample(Rows(pipeline()), records)
    assert (sample.records, sample.row_share, sample.characters) == (5, 0.4, 6.0)
    assert sample.first_error.startswith("offset 3: ")
    assert plan.sample(Rows(pipeline()), []) == Sample(0, 1.0, 0.0)


def test_without_answers_tokens_are_guessed_by_characters() -> None:
    estimate = plan.estimate(
        pipeline(max_output_tokens=50), 100, 20, Sample(10, 0.5, 40.0), Counts()
    )
    assert (estimate.rows, estimate.found, estimate.requests) == (100, 20, 40)
    assert (estimate.input_tokens, estimate.output_tokens, estimate.measured) == (400, 2_000, False)
    assert estimate.cost(1.0, 10.0) == pytest.approx((400 + 20_000) / 1e6)


def test_rows_of_a_store_have_no_answers() -> None:
    told = {
        "name": "small",
        "input": {"topic": "in"},
        "embed": {"store": "vs_" + "a" * 32, "text": "{{ record.text }}"},
        "output": {"topic": "out"},
        "dead_letters": {"topic": "dead"},
    }
    stored = definition.parse(yaml.safe_dump(told))
    sample = plan.sample(Rows(stored), [record(0, b'{"text": "four"}'), record(1, b"{}")])
    assert (sample.row_share, sample.characters) == (0.5, 4.0)
    estimate = plan.estimate(stored, 10, 0, sample, Counts(answered=10))
    assert (estimate.requests, estimate.input_tokens, estimate.output_tokens) == (5, 5, 0)
    assert not estimate.measured


def test_with_answers_tokens_are_as_before() -> None:
    counts = Counts(answered=10, input_tokens=70, output_tokens=30)
    estimate = plan.estimate(pipeline(), 100, 0, Sample(10, 1.0, 40.0), counts)
    assert (estimate.input_tokens, estimate.output_tokens, estimate.measured) == (700, 300, True)


def test_a_ranked_row_takes_its_candidates_and_a_judge() -> None:
    ranked = pipeline(rank={"candidates": 3, "judge": {"user": "x"}}, max_output_tokens=10)
    estimate = plan.estimate(ranked, 10, 0, Sample(1, 1.0, 4.0), Counts())
    assert (estimate.requests, estimate.input_tokens, estimate.output_tokens) == (40, 40, 400)


def test_more_found_than_there_are_rows_is_nothing_to_ask() -> None:
    assert plan.estimate(pipeline(), 3, 5, Sample(1, 1.0, 4.0), Counts()).requests == 0
