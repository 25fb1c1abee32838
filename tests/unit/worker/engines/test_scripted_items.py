"""The scripted engine's answers of several items: commands, schemas, markers, log probabilities."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.parsing import schemas
from tailrace.protocol import features, records
from tests.support import cases
from worker.engines import base, scripted, scripted_answers, scripted_markers, scripted_values
from worker.text.item_parser import Piece

OWNER = records.Owner("i", "s")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
    about = {"name": name, "parameters": parameters or CITY, "strict": True}
    return {"type": "function", "function": about}


def custom(name: str, **about: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **about}}


TOOLS = [function("weather"), function("time"), custom("shell")]


def request(
    *turns: str | dict[str, Any],
    tools: Sequence[dict[str, Any]] = TOOLS,
    metadata: dict[str, str] | None = None,
    **fields: Any,
) -> records.Request:
    """One with these messages; a text is the user's."""
    messages = [m if isinstance(m, dict) else {"role": "user", "content": m} for m in turns]
    return records.Request(
        rid="resp_x",
        owner=OWNER,
        model="m",
        messages=messages,
        sampling=records.Sampling(max_tokens=1000),
        echo={"metadata": metadata or {}},
        tools=list(tools),
        **fields,
    )


def items(asked: records.Request, ids: Sequence[int] | None = None) -> list[tuple[str, str, str]]:
    """Kind, name and text of each item of the answer."""
    parser = scripted_markers.Parser(scripted.Detokenizer())
    ids = list(scripted.answer(asked)) if ids is None else ids
    pieces: list[Piece] = []
    for piece in [*(p for i in ids for p in parser.push(i)), *parser.finish()]:
        if pieces and pieces[-1].kind == piece.kind and not piece.name:
            pieces[-1] = pieces[-1]._replace(text=pieces[-1].text + piece.text)
        else:
            pieces.append(piece)
    return [(p.kind, p.name, p.text) for p in pieces]


def called(*names: str) -> list[dict[str, Any]]:
    """An answer that called these, and their outputs."""
    calls = [{"id": f"call_{n}", "type": "function", "function": {"name": n}} for n in names]
    outputs = [{"role": "tool", "tool_call_id": f"call_{n}", "content": f"{n}!"} for n in names]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *outputs]


def test_a_plain_request_has_the_answer_of_today_and_no_parser() -> None:
    plain = request('call weather {"city":"Rome"}', tools=())
    assert list(scripted.answer(plain)) == scripted.readable(plain.messages)
    counted = request("Hello", tools=(), metadata={"script_tokens": "30"})
    assert list(scripted.answer(counted)) == scripted.expected_ids(counted.messages, 30)
    engine = scripted.Scripted(capacity=1, max_model_len=1000)
    assert [engine.parser_name(r) for r in (plain, request("Hi"))] == ["", "scripted@1"]
    assert engine.features == features.ALL


def test_commands_make_items_in_their_order() -> None:
    asked = request(
        'Please:\nthink It is 天気.\nsay Let me ⟦look⟧.\ncall weather {"city":"Zürich"}\n'
        'call shell "a\\nb ⟦end⟧"\nsay Done.',
        reasoning={"effort": "low"},
    )
    assert items(asked) == [
        ("r", "", "It is 天気."),
        ("m", "", "Let me ⟦look⟧."),
        ("c", "weather", '{"city":"Zürich"}'),
        ("x", "shell", "a\nb [end]"),
        ("m", "", "Done."),
    ]


def test_a_number_stands_for_tokens_that_depend_on_all_before_them() -> None:
    asked = request("think 20\ncall weather 30\nsay 40", reasoning={})
    ids = list(scripted.answer(asked))
    for cut in range(len(ids) + 1):
        assert list(scripted.answer(asked, ids[:cut])) == ids[cut:]
    other = request("think 20\ncall weather 30\nsay 40", reasoning={}, metadata={"a": "b"})
    assert list(scripted.answer(other, nonce="claim")) != ids
    at = len(ids) // 2
    changed = list(scripted.answer(asked, [*ids[: at - 1], ids[at - 1] ^ 1]))
    differ = [a != b for a, b in zip(changed, ids[at:], strict=True)]
    assert sum(differ) > 0.9 * len(differ)  # also markers and JSON, by their bits
    (_, _, thought), (_, _, arguments), (_, _, said) = items(asked)
    assert len(thought) > 40
    assert len(said) > 100
    assert len(json.loads(arguments)["city"]) > 80


@cases.each("rounds", range(4))
def test_then_is_for_the_answer_after_the_outputs(rounds: int) -> None:
    asked = request(
        'call weather {"city":"a"}\nthen\ncall time {}\nthen\nsay Bye.',
        *itertools.chain.from_iterable(called("weather") for _ in range(rounds)),
    )
    kinds = [("c", "weather", '{"city":"a"}'), ("c", "time", "{}"), ("m", "", "Bye.")]
    kinds.append(("m", "", "The tools said: “weather!”."))
    assert items(asked) == [kinds[rounds]]


def test_outputs_are_quoted_so_that_a_loop_ends() -> None:
    asked = request('call weather {"city":"a"}', *called("weather", "time"))
    assert items(asked) == [("m", "", "The tools said: “weather!” and “time!”.")]


def choice(mode: Any, *names: str) -> records.ToolChoice:
    return records.ToolChoice(mode, names)


@cases.each(
    ("said", "fields", "expected"),
    [
        ("call weather\ncall time", {"tool_choice": choice("none")}, ["m"]),
        ("call weather\ncall time", {"tool_choice": choice("auto", "time")}, ["c time"]),
        ("call weather", {"tool_choice": choice("required", "time")}, ["c time"]),
        ("say Hello", {"tool_choice": choice("required")}, ["c weather"]),
        ("say Hello", {"tool_choice": choice("required", "shell")}, ["x shell"]),
        ("call weather\ncall time", {"parallel_tool_calls": False}, ["c weather"]),
        ("call weather\ncall time\ncall time", {"max_tool_calls": 2}, ["c weather", "c time"]),
        ("call nothing", {}, ["m"]),
        ("think a\ncall time", {"reasoning": {"effort": "none"}}, ["c time"]),
        ("think a\ncall time", {}, ["c time"]),
        ("Hello", {"reasoning": {}}, ["r", "m"]),
    ],
)
def test_what_the_request_allows(said: str, fields: dict[str, Any], expected: list[str]) -> None:
    parts = items(request(said, **fields))
    assert [f"{kind} {name}".strip() for kind, name, _ in parts] == expected


def test_a_choice_that_requires_a_call_is_obeyed_after_outputs_too() -> None:
    asked = request("call weather", *called("weather"), tool_choice=choice("required"))
    assert [kind for kind, *_ in items(asked)] == ["c"]


def test_script_tokens_is_a_message_where_nothing_is_commanded() -> None:
    parts = items(request("Hello", metadata={"script_tokens": "40"}))
    assert [kind for kind, *_ in parts] == ["m"]
    assert len(list(scripted.answer(request("Hello", metadata={"script_tokens": "40"})))) == 40


# ---- formats


def test_a_message_is_of_the_format_whatever_was_to_be_said() -> None:
    form = {"type": "json_schema", "schema": CITY, "strict": True}
    for said in ("Hello", "say Hello", "json 40", "json no json", "say a\nsay b"):
        ((kind, _, text),) = items(request(said, tools=(), format=form))
        assert kind == "m"
        assert set(json.loads(text)) == {"city"}
    ((_, _, text),) = items(request('json {"city":"Rome"}', tools=(), format=form))
    assert text == '{"city":"Rome"}'


@cases.each(
    ("form", "pattern"),
    [
        ({"type": "json_object"}, r'\{"answer":".+"\}'),
        ({"type": "choice", "choices": ["yes", "no"]}, "yes|no"),
        ({"type": "regex", "pattern": r"[0-9]{3}-\w+|x"}, r"[0-9]{3}-\w+"),
    ],
)
def test_other_formats(form: dict[str, Any], pattern: str) -> None:
    ((_, _, text),) = items(request("Hello", tools=(), format=form))
    assert re.fullmatch(pattern, text)


async def test_a_grammar_is_refused_before_anything_is_written() -> None:
    asked = request("Hello", format={"type": "grammar", "definition": 'start: "a"'})
    with pytest.raises(base.Refused, match="unsupported_parameter"):
        await scripted.Scripted(capacity=1, max_model_len=100).encode(asked)


TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 9},
        "left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    },
    "required": ["value", "left"],
}


def of(*, array: bool = False, **members: Any) -> dict[str, Any]:
    return {"type": "array", "items": members} if array else {"type": "object", **members}


@cases.each(
    "schema",
    [
        TREE,
        {},
        of(),
        of(properties={"a": {"enum": [2, "b"]}, "b": {"const": [1]}}),
        of(properties={"a": {"type": ["null", "string"]}, "b": {"type": "boolean"}}),
        of(properties={"a": {"type": "string", "minLength": 3, "maxLength": 4}}),
        of(properties={"a": {"type": "string", "minLength": 30}}),
        of(properties={"a": {"type": "string", "pattern": "^(a|b)+[^a-z0-9_. -]{2}\\d?x$"}}),
        of(properties={"a": {"type": "string", "format": "date-time"}}),
        of(properties={"a": {"type": "number", "exclusiveMinimum": 7.5, "maximum": 8}}),
        of(properties={"a": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.1}}),
        of(properties={"a": {"type": "integer", "exclusiveMaximum": -3}}),
        of(
            properties={"a": {"type": "string"}},
            required=["a"],
            additionalProperties=True,
            minProperties=2,
        ),
        of(properties={"a": {"type": "string"}, "b": {"type": "string"}}, maxProperties=1),
        of(array=True, type="string"),
        {"type": "array", "items": {"type": "integer"}, "minItems": 3},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 0},
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 2},
        {
            **of(properties={"a": {"$ref": "#/$defs/b"}}, required=["a"]),
            "$defs": {"b": {"oneOf": [{"type": "integer"}, {"type": "string"}]}},
        },
        {"allOf": [of(properties={"é": {"type": "string"}})]},
    ],
    ids=repr,
)
def test_a_value_is_valid_for_every_schema_that_the_gateway_accepts(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schemas.check(schema, "schema")
    form = {"type": "json_schema", "schema": schema, "strict": True}
    for said in ("Hello", "json 50"):
        ((_, _, text),) = items(request(said, tools=(), format=form))
        jsonschema.validate(json.loads(text), schema)


def test_a_schema_without_an_end_is_no_trap() -> None:
    endless = {
        "type": "object",
        "properties": {n: {"$ref": "#"} for n in "abc"},
        "required": list("abc"),
    }
    with pytest.raises(scripted_values.Impossible):
        scripted_values.parts(endless)


# ---- the parser


def test_one_id_at_a_time_is_the_only_way_to_feed_the_parser() -> None:
    asked = request("think a\ncall weather\ncall time\nsay b", reasoning={})
    ids = list(scripted.answer(asked))

    class InPairs(scripted.Detokenizer):
        """Gives the text of two ids at once."""

        def push(self, ids: Sequence[int]) -> str:
            held.extend(ids)
            if len(held) < 2:
                return ""
            pair = held[:]
            held.clear()
            return super().push(pair)

    held: list[int] = []
    parser = scripted_markers.Parser(InPairs())
    text = "".join(piece.text for id in ids for piece in parser.push(id))
    assert "⟦" in text
    assert "⟦" not in "".join(text for *_, text in items(asked))


def test_what_is_held_at_the_end_is_text() -> None:
    asked = request("say a\ncall weather")
    ids = list(scripted.answer(asked))
    cut = (
        next(n for n, i in enumerate(ids) if i >> 28 == scripted.MARKER) + 4
    )  # two ids are the bracket
    assert items(asked, ids[:cut]) == [("m", "", "a⟦call")]


# ---- log probabilities


def test_log_probabilities_are_a_function_of_the_id() -> None:
    asked = request("think 天\nsay 30", reasoning={})
    ids = list(scripted.answer(asked))
    lp = scripted.logprobs(ids, 3)
    assert scripted.logprobs(ids[7:], 3) == lp[7:]
    assert all(len(each.top) == 3 for each in lp)
    assert all(e.top[0] == records.Likely(e.token, e.logprob, e.raw) for e in lp)
    assert all(a.logprob >= b.logprob for each in lp for a, b in itertools.pairwise(each.top))
    assert scripted.logprobs(ids, 0)[0].top == ()
    raw = b"".join(bytes.fromhex(e.raw) if e.raw else e.token.encode() for e in lp)
    shown = "".join(text for *_, text in items(asked))
    assert raw.decode() == shown  # markers are empty


def test_answers_are_made_of_runs() -> None:
    assert scripted_answers.runs(request("say 3"), 5) == [3]
    assert scripted_answers.runs(request("Hello"), 5) == [5]
