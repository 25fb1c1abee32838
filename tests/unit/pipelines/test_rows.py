"""Records in, records out: what a row is, and what its output, alert or dead letter says."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import pytest
import yaml
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from pipelines import definition, rows
from pipelines.rows import Answer, Refusal, Rows, Skipped, StoredFile
from pipelines.templates import Unusable
from tailrace.log import Outgoing, Record
from tests.support import cases, odd_values

TOLD: dict[str, Any] = {
    "name": "small",
    "input": {"topic": "in"},
    "prompt": {"user": "{{ record.text }} of {{ key }}", "system": "Be {{ record.how }}."},
    "output": {"topic": "out"},
    "alert": {"topic": "hot", "when": "answer.bad"},
    "dead_letters": {"topic": "dead"},
}


def made(**changes: Any) -> Rows:
    return Rows(definition.parse(yaml.safe_dump({**TOLD, **changes})))


def record(value: bytes | None = b'{"text": "Hi", "how": "brief"}', **changes: Any) -> Record:
    given = {"topic": "in", "partition": 2, "offset": 5, "timestamp": 9, "key": b"k"}
    return Record(**{**given, "value": value, "headers": (), **changes})


def test_a_row_is_asked_with_what_the_record_says() -> None:
    pipeline_rows = made()
    row = pipeline_rows.read(record(headers=(("h", b"v"),)))
    assert row.place == "in/2/5/9"
    assert row.values["headers"] == {"h": "v"}
    assert (row.values["partition"], row.values["offset"], row.values["timestamp"]) == (2, 5, 9)
    assert pipeline_rows.question(row) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi of k"},
    ]


def test_records_may_be_text() -> None:
    pipeline_rows = made(input={"topic": "in", "format": "text"}, prompt={"user": "{{ record }}"})
    assert (
        pipeline_rows.question(pipeline_rows.read(record("grüß".encode())))[0]["content"] == "grüß"
    )
    with pytest.raises(Unusable, match="UTF-8"):
        pipeline_rows.read(record(b"\xff"))


@cases.each("value", [b"", b"{", b'{"a": \xff}', b"[" * 100_000])
def test_what_is_no_json_is_unusable(value: bytes) -> None:
    with pytest.raises(Unusable, match=r"no JSON|no UTF-8"):
        made().read(record(value))


def test_tombstones_and_rows_that_are_not_wanted_are_passed_over() -> None:
    pipeline_rows = made(where="record.text != 'Hi'")
    for each in (record(), record(None)):
        with pytest.raises(Skipped):
            pipeline_rows.read(each)
    assert pipeline_rows.read(record(b'{"text": "Ho"}')).values["record"] == {"text": "Ho"}
    with pytest.raises(Unusable):
        pipeline_rows.read(record(b"{}"))


def test_an_output_says_the_answer_and_where_it_comes_from() -> None:
    found = made()
    row = found.read(record(headers=(("h", b"v"), (rows.REASON, b"of another pipeline"))))
    answer = Answer({"bad": False}, "resp_1", "m", 3, 4, incomplete=True, candidates=2)
    written = found.output_records(row, answer)
    [output] = written.records
    assert (output.topic, output.key, written.alerted, written.dead) == ("out", b"k", False, False)
    assert json.loads(output.value or b"") == {
        "answer": {"bad": False},
        "response": "resp_1",
        "model": "m",
        "pipeline": "small",
        "revision": definition.parse(yaml.safe_dump(TOLD)).revision,
        "source": {"topic": "in", "partition": 2, "offset": 5, "timestamp": 9},
        "usage": {"input_tokens": 3, "output_tokens": 4},
        "incomplete": True,
        "candidates": 2,
    }
    headers = dict(output.headers)
    assert headers.keys() == {"h", rows.SOURCE, rows.PIPELINE}
    assert headers[rows.SOURCE] == b"in/2/5/9"


STORE = "vs_" + "a" * 32
CITED = {"file_id": "file-1", "filename": "a.md", "index": 3}


def of_store(**changes: Any) -> Rows:
    told = {name: member for name, member in TOLD.items() if name not in ("prompt", "alert")}
    embed = {"store": STORE, "text": "{{ record.text }}!"}
    return Rows(definition.parse(yaml.safe_dump({**told, "embed": embed, **changes})))


def test_an_output_of_a_store_says_the_file_and_where_it_comes_from() -> None:
    store_rows = of_store()
    row = store_rows.read(record())
    assert store_rows.document(row).text == b"Hi!"
    assert store_rows.length(row) == 3
    [output] = store_rows.output_records(row, StoredFile("file-1", STORE, 4)).records
    revision = (dict(output.headers)[rows.PIPELINE] or b"").decode().partition("/")[2]
    assert json.loads(output.value or b"") == {
        "file": "file-1",
        "store": STORE,
        "passages": 4,
        "pipeline": "small",
        "revision": revision,
        "source": {"topic": "in", "partition": 2, "offset": 5, "timestamp": 9},
    }


def test_expressions_see_what_was_stored() -> None:
    alert = {"topic": "hot", "when": "answer.passages > 3"}
    store_rows = of_store(output={"topic": "out", "key": "answer.file"}, alert=alert)
    output = store_rows.output_records(store_rows.read(record()), StoredFile("file-1", STORE, 4))
    assert [(each.topic, each.key) for each in output.records] == [
        ("out", b"file-1"),
        ("hot", b"file-1"),
    ]
    broken = of_store(output={"topic": "out", "value": "answer.lacking"})
    [letter] = broken.output_records(broken.read(record()), StoredFile("file-1", STORE, 4)).records
    assert dict(letter.headers)[rows.REASON] == b"output"
    assert rows.RESPONSE not in dict(letter.headers)


def test_citations_are_in_the_output_where_there_are_any() -> None:
    pipeline_rows = made(output={"topic": "out"}, alert={"topic": "hot", "when": "not citations"})
    row = pipeline_rows.read(record())
    cited = pipeline_rows.output_records(row, Answer("yes", "resp_1", "m", citations=(CITED,)))
    assert json.loads(cited.records[0].value or b"")["citations"] == [CITED]
    none = pipeline_rows.output_records(row, Answer("yes", "resp_1", "m"))
    assert "citations" not in json.loads(none.records[0].value or b"")
    assert (cited.alerted, none.alerted) == (False, True)


def test_an_alert_is_the_same_record_on_another_topic() -> None:
    found = made()
    written = found.output_records(found.read(record()), Answer({"bad": True}, "resp_1", "m"))
    output, alert = written.records
    assert written.alerted
    assert alert == output._replace(topic="hot")


def test_key_and_value_may_be_expressions() -> None:
    value = '{"t": record.text, "a": answer, "r": response}'
    found = made(output={"topic": "out", "key": "record.id", "value": value}, alert=None)
    row = found.read(record(b'{"id": 7, "text": "Hi", "how": ""}'))
    [output] = found.output_records(row, Answer("yes", "resp_1", "m")).records
    assert output.key == b"7"
    assert json.loads(output.value or b"") == {"t": "Hi", "a": "yes", "r": "resp_1"}


@cases.each(
    ("changes", "answer"),
    [
        ({"alert": {"topic": "hot", "when": "answer.lacking"}}, {}),
        ({"output": {"topic": "out", "key": "answer.bad"}}, {"bad": "\ud800"}),
        ({"output": {"topic": "out", "value": "record.list|map('int')"}}, {"bad": False}),
        ({}, {"bad": False, "text": "x" * (1 << 20)}),  # more than a broker takes
    ],
)
def test_an_answer_that_does_not_go_with_the_file_is_a_dead_letter(
    changes: dict[str, Any], answer: dict[str, Any]
) -> None:
    pipeline_rows = made(**changes)
    row = pipeline_rows.read(record(b'{"text": "Hi", "how": "", "list": [1]}'))
    written = pipeline_rows.output_records(row, Answer(answer, "resp_1", "m", 3, 4))
    [letter] = written.records
    assert written.dead
    assert not written.alerted
    headers = dict(letter.headers)
    assert (letter.topic, headers[rows.REASON], headers[rows.RESPONSE]) == (
        "dead",
        b"output",
        b"resp_1",
    )


def test_a_dead_letter_is_the_record_with_the_reason() -> None:
    source = record(b"{", headers=(("h", b"v"), (rows.DETAIL, b"old")))
    [letter] = made().dead(source, Refusal("unreadable", "no JSON")).records
    assert (letter.topic, letter.key, letter.value) == ("dead", b"k", b"{")
    assert [name for name, _ in letter.headers] == [
        "h",
        rows.SOURCE,
        rows.PIPELINE,
        rows.REASON,
        rows.DETAIL,
    ]
    assert dict(letter.headers)[rows.DETAIL] == b"no JSON"


def test_a_detail_is_cut_between_characters() -> None:
    [letter] = made().dead(record(), Refusal("schema", "ü" * 5_000 + "\ud800")).records
    detail = (dict(letter.headers)[rows.DETAIL] or b"").decode()
    assert 1_900 < len(detail.encode()) <= rows.MAX_DETAIL
    assert set(detail) == {"ü"}
    [letter] = made().dead(record(), Refusal("schema", "\ud800")).records
    assert dict(letter.headers)[rows.DETAIL] == b"?"


def test_a_record_that_is_too_large_to_be_copied_is_named_only() -> None:
    source = record(b"x" * rows.MAX_BYTES)
    [letter] = made().dead(source, Refusal("unreadable", "no JSON")).records
    assert letter.value is None
    assert dict(letter.headers)[rows.SOURCE] == b"in/2/5/9"


def size_on_the_wire(found: Outgoing) -> int:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    builder.append(0, 1, found.key, found.value, list(found.headers))
    return len(builder.build())


def test_every_record_that_kafka_takes_becomes_records_that_a_broker_takes() -> None:
    """A header without a value ended the runner with a TypeError, and again after each restart. A
    dead letter that its headers or its key made too large was refused by the broker for ever."""
    pipeline_rows = made(
        where="record.text is defined", prompt={"user": "{{ record.text }} {{ headers }}"}
    )
    for source in odd_values.records():
        written = [pipeline_rows.dead(source, Refusal("internal", "d" * 5_000, "resp_1")).records]
        with contextlib.suppress(Skipped, Unusable):
            row = pipeline_rows.read(source)
            pipeline_rows.length(row)
            written.append(
                pipeline_rows.output_records(
                    row, Answer(row.values["record"]["text"], "r", "m")
                ).records
            )
        for each in itertools.chain(*written):
            assert size_on_the_wire(each) <= 1 << 20
            assert rows.place_of(source).encode() == dict(each.headers)[rows.SOURCE]


def test_a_header_without_a_value_is_none_in_templates_and_stays_as_it_is() -> None:
    found = made(prompt={"user": "{{ headers.a }}"})
    row = found.read(record(headers=(("a", None), ("b", b""))))
    assert row.values["headers"] == {"a": None, "b": ""}
    [output] = found.output_records(row, Answer({"bad": False}, "resp_1", "m")).records
    assert output.headers[:2] == [("a", None), ("b", b"")]
