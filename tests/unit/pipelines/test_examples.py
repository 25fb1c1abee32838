"""Examples: their generators make what their files read, and each record says its right answer."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jsonschema

from pipelines import definition, samples
from pipelines.examples import data
from pipelines.rows import Answer, Rows, Skipped, StoredFile
from pipelines.templates import Unusable
from tailrace.log import Record
from tests.support import cases

COUNT = 300
NAMES = list(data.GENERATORS)


def pipeline(name: str) -> definition.Pipeline:
    return definition.parse(samples.file(name))


def test_each_file_has_a_generator() -> None:
    files = Path(samples.__file__).parent.joinpath("examples").glob("*.yaml")
    assert {file.stem for file in files} == set(NAMES)


@cases.each("name", NAMES)
def test_records_are_those_that_their_kind_says(name: str) -> None:
    told = pipeline(name)
    rows = Rows(told)
    kinds = Counter[str]()
    for offset, each in enumerate(data.GENERATORS[name](COUNT, 1)):
        record = Record(told.input.topic, 0, offset, 0, each.key, each.value, ())
        try:
            row = rows.read(record)
            rows.length(row)
        except Skipped:
            kind = "skipped"
        except Unusable:
            kind = "broken"
        else:
            kind = "planted"
            assert row.values["record"]["planted"] == each.planted
        wanted = "broken" if each.broken else "skipped" if each.planted is None else "planted"
        assert kind == wanted, each
        kinds[kind] += 1
    assert kinds["planted"] > COUNT / 2


@cases.each("name", NAMES)
def test_planted_answers_are_answers(name: str) -> None:
    told = pipeline(name)
    rows, alerts = Rows(told), 0
    for offset, each in enumerate(data.GENERATORS[name](COUNT, 1)):
        if each.planted is None:
            continue
        record = Record(told.input.topic, 0, offset, 0, each.key, each.value, ())
        if told.answer is not None:
            jsonschema.validate(each.planted, told.answer)
        outcome: Answer | StoredFile
        if told.embed is not None:
            outcome = StoredFile("file-1", told.embed.store, each.planted["passages"])
        else:
            answer = each.planted if told.answer is not None else each.planted["text"]
            outcome = Answer(answer, "resp_1", "m")
        output = rows.output_records(rows.read(record), outcome)
        assert not output.dead
        alerts += output.alerted
    assert bool(alerts) is (told.alert is not None)


@cases.each("name", NAMES)
def test_a_seed_makes_the_same_records_again(name: str) -> None:
    made = [list(data.GENERATORS[name](50, seed)) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_questions_do_not_say_the_right_answer() -> None:
    for name in NAMES:
        rows = Rows(pipeline(name))
        for each in data.GENERATORS[name](100, 1):
            if each.planted is not None:
                row = rows.read(Record("t", 0, 0, 0, b"", each.value, ()))
                stored = pipeline(name).embed is not None
                asked = rows.document(row) if stored else rows.question(row)
                assert json.dumps(each.planted) not in str(asked)
                assert "planted" not in str(asked)
