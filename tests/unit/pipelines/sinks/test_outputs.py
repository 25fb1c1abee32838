"""What a sink reads in records: outputs, values of another shape, dead letters."""

from __future__ import annotations

import json
from typing import Any

from pipelines.sinks.outputs import of_record
from tailrace.log import Record
from tests.support import cases, odd_values

HEADERS = (
    ("trace", b"t"),
    ("tailrace-source", b"shop.reviews/2/50/1795632373843"),
    ("tailrace-pipeline", b"reviews/1-5d69966a"),
)


def record(value: Any, headers: Any = HEADERS) -> Record:
    raw = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    return Record("out", 1, 7, 1795632373900, b"k", raw, tuple(headers))


def test_an_output_stands_under_its_source_with_its_offset_as_version() -> None:
    value = {"answer": {"a": [1, None]}, "response": "resp_1", "model": "m", "usage": {}}
    assert of_record(record(value))._asdict() == {
        "source": "shop.reviews/2/50/1795632373843",
        "answer": {"a": [1, None]},
        "response": "resp_1",
        "model": "m",
        "revision": "1-5d69966a",
        "reason": "",
        "detail": "",
        "input": "",
        "timestamp": 1795632373900,
        "version": 7,
        "place": "out/1/7",
    }


@cases.each(
    ("value", "answer"),
    [
        ({"file": "file-1", "model": 3}, {"file": "file-1", "model": 3}),
        ([1, 2], [1, 2]),
        ("text", "text"),
        (b"no json \xff", "no json �"),
        (b"[" * 100_000, "[" * 100_000),
        (None, None),
        ({"answer": None}, None),
    ],
)
def test_a_value_without_an_answer_is_the_answer(value: Any, answer: Any) -> None:
    output = of_record(record(value))
    assert (output.answer, output.model) == (answer, "")


def test_a_dead_letter_has_its_reason_and_its_input_as_text() -> None:
    headers = [*HEADERS, ("tailrace-reason", b"schema"), ("tailrace-detail", b"at $.a")]
    output = of_record(record({"answer": "of the input, not of a model"}, headers))
    assert (output.answer, output.reason, output.detail) == (None, "schema", "at $.a")
    assert json.loads(output.input) == {"answer": "of the input, not of a model"}
    assert of_record(record(None, headers)).input == ""


def test_a_record_that_no_runner_wrote_stands_under_its_own_place() -> None:
    assert of_record(record({}, ())).source == "out/1/7/1795632373900"


def test_every_record_that_kafka_takes_is_a_row() -> None:
    """A header without a value ended the sink, and again after each restart."""
    for source in odd_values.records("out", 1):
        assert of_record(source).place == f"out/1/{source.offset}"
