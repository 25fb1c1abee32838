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
from tests.support import cases

ROOT = Path(__file__).resolve().parents[3]
SMALL = """
name: small
input: {topic: in}
prompt: {user: "{{ record.text }}"}
output: {topic: out}
dead_letters: {topic: dead}
"""


def read(**changes: Any) -> definition.Pipeline:
    return definition.parse(yaml.safe_dump({**yaml.safe_load(SMALL), **changes}))


def test_the_smallest_file() -> None:
    pipeline = definition.parse(SMALL)
    assert (pipeline.input.format, pipeline.input.start) == ("json", "earliest")
    assert (pipeline.batch.records, pipeline.batch.seconds, pipeline.concurrency) == (100, 5.0, 16)
    assert (pipeline.priority, pipeline.temperature, pipeline.attempts) == ("batch", 0.0, 2)
    assert pipeline.outputs == ["out", "dead"]
    assert pipeline.group == "tailrace.pipelines.small"
    assert pipeline.transactional_id(3) == "tailrace.pipelines.small.in.3"
    assert read(alert={"topic": "hot", "when": "true"}).outputs == ["out", "hot", "dead"]


@cases.each(
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


STORE = "vs_" + "a" * 32
EMBED = {"store": STORE, "text": "{{ record.text }}"}


def stored(**changes: Any) -> definition.Pipeline:
    """The pipeline with `embed` instead of its prompt."""
    told = {"embed": EMBED, **changes}
    return definition.parse(yaml.safe_dump({**without_prompt(), **told}))


def without_prompt() -> dict[str, Any]:
    told: dict[str, Any] = yaml.safe_load(SMALL)
    del told["prompt"]
    return told


def test_a_row_is_asked_or_stored() -> None:
    stored_row = stored(alert={"topic": "hot", "when": "true"}, concurrency=3)
    assert stored_row.embed is not None
    assert (stored_row.prompt, stored_row.embed.store, stored_row.embed.attributes) == (
        None,
        STORE,
        {},
    )
    asked = read(retrieve={"stores": [STORE]})
    assert asked.retrieve is not None
    assert (asked.retrieve.results, asked.retrieve.filters, asked.retrieve.score) == (5, None, None)
    with pytest.raises(definition.Invalid, match="neither `prompt` nor `embed`"):
        definition.parse(yaml.safe_dump(without_prompt()))


@cases.each(
    ("changes", "why"),
    [
        ({"prompt": {"user": "x"}}, "`prompt` does not go with `embed`"),
        ({"answer": {"type": "object"}}, "`answer` does not go"),
        ({"rank": {"candidates": 2, "judge": {"user": "x"}}}, "`rank` does not go"),
        ({"retrieve": {"stores": [STORE]}}, "`retrieve` does not go"),
        ({"temperature": 0}, "`temperature` does not go"),
        ({"priority": "batch"}, "`priority` does not go"),
        ({"embed": {**EMBED, "store": "shop"}}, r"embed\.store"),
        ({"embed": {"store": STORE}}, "text"),
        ({"embed": {**EMBED, "attributes": {"source": "key"}}}, "`source` says where"),
        ({"embed": {**EMBED, "attributes": {f"a{n}": "key" for n in range(16)}}}, "attributes"),
        ({"embed": {**EMBED, "attributes": {"a" * 65: "key"}}}, "attributes"),
    ],
)
def test_what_does_not_go_with_a_store(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(definition.Invalid, match=why):
        stored(**changes)


@cases.each(
    ("changes", "why"),
    [
        ({"stores": []}, "stores"),
        ({"stores": ["x"]}, "stores"),
        ({"results": 0}, "results"),
        ({"results": 51}, "results"),
        ({"score": 1.5}, "score"),
        ({"filters": {"type": "near", "key": "a", "value": 1}}, "filters"),
        ({"filters": {"type": "eq", "key": "a"}}, "`eq` has `key` and `value`"),
        ({"filters": {"type": "in", "key": "a", "value": 1}}, "`in` is a list"),
        ({"filters": {"type": "eq", "key": "a", "value": [1]}}, "`eq` is no list"),
        ({"filters": {"type": "and"}}, "`and` has `filters`"),
        (
            {"filters": {"type": "or", "filters": [{"type": "gt", "value": 1}]}},
            "`gt` has `key` and `value`",
        ),
    ],
)
def test_what_may_not_be_retrieved(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(definition.Invalid, match=why):
        read(retrieve={"stores": [STORE], **changes})


def test_filters_have_so_many_levels_and_members() -> None:
    one = {"type": "eq", "key": "a", "value": False}

    def within(levels: int) -> dict[str, Any]:
        found: dict[str, Any] = one
        for _ in range(levels - 1):
            found = {"type": "and", "filters": [found]}
        return found

    read(retrieve={"stores": [STORE], "filters": within(8)})
    read(retrieve={"stores": [STORE], "filters": {"type": "or", "filters": [one] * 99}})
    for many in (within(9), {"type": "or", "filters": [one] * 100}):
        with pytest.raises(definition.Invalid, match="at most 100 filters on 8 levels"):
            read(retrieve={"stores": [STORE], "filters": many})


OF_STORES: list[dict[str, Any]] = [
    {},
    {"store": "vs_" + "b" * 32},
    {"text": "{{ record }}"},
    {"filename": "a.md"},
    {"attributes": {"a": "key"}},
]
OF_SEARCHES: list[dict[str, Any]] = [
    {},
    {"results": 6},
    {"score": 0.5},
    {"filters": {"type": "eq", "key": "a", "value": 1}},
]


def test_what_shapes_a_store_or_a_search_makes_another_revision() -> None:
    other = "vs_" + "b" * 32
    found = [
        *(stored(embed={**EMBED, **changes}) for changes in OF_STORES),
        read(),
        *(read(retrieve={"stores": [STORE], **changes}) for changes in OF_SEARCHES),
        read(retrieve={"stores": [other]}),
    ]
    assert len({each.revision for each in found}) == len(found)
    # One that has neither keeps the revision that it had before there were stores.
    assert read().revision == "1-5c346225"


def test_an_error_of_yaml_names_its_line() -> None:
    with pytest.raises(definition.Invalid, match="line 4"):
        definition.parse("name: a\ninput: {topic: a}\noutput: [\n")
    with pytest.raises(definition.Invalid, match="object"):
        definition.parse("")


def test_what_yaml_takes_for_a_date_is_text_for_the_gateway() -> None:
    answer = {"type": "object", "properties": {"day": {"const": "DAY"}}}
    text = yaml.safe_dump({**yaml.safe_load(SMALL), "answer": answer}).replace("DAY", "2026-11-25")
    assert '"2026-11-25"' in json.dumps(definition.parse(text).answer)


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


@cases.each(
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


@cases.each("name", list(data.GENERATORS))
def test_the_published_schema_takes_the_examples(name: str) -> None:
    schema = json.loads((ROOT / "docs/pipelines.schema.json").read_text())
    told = yaml.safe_load((ROOT / f"pipelines/examples/{name}.yaml").read_text())
    jsonschema.validate(told, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**told, "promt": "x"}, schema)
    other = {"embed": EMBED} if "prompt" in told else {"prompt": {"user": "x"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**told, **other}, schema)
