"""Files of pipelines: what they may say, how an error is told, and what a revision is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from pipelines import definition
from pipelines.examples import data

ROOT = Path(__file__).resolve().parents[3]
SMALL = """
name: small
input: {topic: in}
prompt: {user: "{{ record.text }}"}
output: {topic: out}
dead_letters: {topic: dead}
"""


def read(**changes: Any) -> definition.Pipeline:
    return definition.decoded(yaml.safe_dump({**yaml.safe_load(SMALL), **changes}))


def test_the_smallest_file() -> None:
    found = definition.decoded(SMALL)
    assert (found.input.format, found.input.start) == ("json", "earliest")
    assert (found.batch.records, found.batch.seconds, found.concurrency) == (100, 5.0, 16)
    assert (found.priority, found.temperature, found.attempts) == ("batch", 0.0, 2)
    assert found.outputs == ["out", "dead"]
    assert found.group == "tailrace.pipelines.small"
    assert found.transactional_id(3) == "tailrace.pipelines.small.in.3"
    assert read(alert={"topic": "hot", "when": "true"}).outputs == ["out", "hot", "dead"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "Small"}, "name"),
        ({"promt": {}}, "promt"),
        ({"prompt": {"user": ""}}, r"prompt\.user"),
        ({"version": 1.1}, "version"),
        ({"input": {"topic": "a/b"}}, r"input\.topic"),
        ({"concurrency": 0}, "concurrency"),
        ({"output": {"topic": "in"}}, "'in' is named twice"),
        ({"dead_letters": {"topic": "out"}}, "'out' is named twice"),
        ({"output": {"topic": "llm.tokens"}}, "belongs to Tailrace"),
        ({"metadata": {f"k{n}": "v" for n in range(16)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"seed": 2**63}, "seed"),
        ({"rank": {"candidates": 1, "judge": {"user": "x"}}}, r"rank\.candidates"),
    ],
)
def test_what_a_file_may_not_say(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(definition.Invalid, match=why):
        read(**changes)


def test_an_error_of_yaml_names_its_line() -> None:
    with pytest.raises(definition.Invalid, match="line 4"):
        definition.decoded("name: a\ninput: {topic: a}\noutput: [\n")
    with pytest.raises(definition.Invalid, match="object"):
        definition.decoded("")


def test_what_yaml_takes_for_a_date_is_text_for_the_gateway() -> None:
    answer = {"type": "object", "properties": {"day": {"const": "DAY"}}}
    text = yaml.safe_dump({**yaml.safe_load(SMALL), "answer": answer}).replace("DAY", "2026-11-25")
    assert '"2026-11-25"' in json.dumps(definition.decoded(text).answer)


CHANGED: list[dict[str, Any]] = [
    {"version": 2},
    {"prompt": {"user": "other"}},
    {"prompt": {"user": "{{ record.text }}", "system": "s"}},
    {"model": "m"},
    {"answer": {"type": "object"}},
    {"max_output_tokens": 5},
    {"temperature": 0.5},
    {"seed": 1},
    {"rank": {"candidates": 2, "judge": {"user": "x"}}},
    {"priority": "interactive"},
    {"metadata": {"a": "b"}},
]


def test_what_shapes_an_answer_makes_another_revision() -> None:
    revisions = [read().revision, *(read(**changes).revision for changes in CHANGED)]
    assert len(set(revisions)) == len(revisions)


@pytest.mark.parametrize(
    "changes",
    [
        {"output": {"topic": "elsewhere"}},
        {"alert": {"topic": "hot", "when": "true"}},
        {"batch": {"records": 5}},
        {"concurrency": 3},
        {"where": "record.text"},
    ],
)
def test_what_shapes_none_leaves_the_revision(changes: dict[str, Any]) -> None:
    assert read(**changes).revision == read().revision


def test_the_order_of_members_is_not_part_of_the_revision() -> None:
    one = read(answer={"type": "object", "title": "t"})
    assert one.revision == read(answer={"title": "t", "type": "object"}).revision


@pytest.mark.parametrize("name", list(data.GENERATORS))
def test_the_published_schema_takes_the_examples(name: str) -> None:
    schema = json.loads((ROOT / "docs/pipelines.schema.json").read_text())
    told = yaml.safe_load((ROOT / f"pipelines/examples/{name}.yaml").read_text())
    jsonschema.validate(told, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**told, "promt": "x"}, schema)
