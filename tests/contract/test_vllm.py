"""What the vLLM engine does beyond the contract of all engines, on a toy model that knows tools.

Collected in the engine environment (tests/contract/test_engine_environment.py).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import transformers

from tailrace import private_parts
from tailrace.protocol import events, records
from tests.support import cuts, schemas, toy_tools
from tests.support.model_engines import CAPACITY, TOY, TOY_PUBLIC, Model, cases, metric
from tests.support.waiting import eventually
from worker.engines import base, vllm, vllm_internals, vllm_parsers

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
    pytest.mark.parametrize("model", cases(TOY, TOY_PUBLIC), indirect=True),
]


@pytest.fixture
def engine(model: Model) -> vllm.VLLM:
    return model.engine


@pytest.fixture
def folder(model: Model) -> Path:
    return model.folder


def ask(text: str = "Say hello.", max_tokens: int = 24, **more: Any) -> records.Request:
    """With tools or a format: without reasoning, unless `more` says otherwise."""
    if "tools" in more or "format" in more:
        more = {"reasoning": {"effort": "none"}, **more}
    rid = f"resp_{os.urandom(16).hex()}"
    of_request = records.Request.__struct_fields__
    fields = {k: v for k, v in more.items() if k in of_request}
    sampling = {k: v for k, v in more.items() if k not in of_request}
    return records.Request(
        rid,
        records.Owner("i", "s"),
        "m",
        [{"role": "user", "content": text}],
        records.Sampling(max_tokens, **{"temperature": 0.0, **sampling}),
        events.echo(rid, 0, "m", metadata={}),
        **fields,
    )


async def steps_of(
    engine: base.Engine, request: records.Request, accepted: Sequence[int] = ()
) -> list[base.Step]:
    """All steps of an attempt that continues behind `accepted`."""
    found: list[base.Step] = []

    def keep(step: base.Step) -> bool:
        found.append(step)
        return True

    prompt = await engine.encode(request)
    left = request.sampling.max_tokens - len(accepted)
    token = os.urandom(16).hex()
    await engine.generate(base.GenerationInput(request, token, prompt, list(accepted), left), keep)
    return found


async def answer(
    engine: base.Engine, request: records.Request, accepted: Sequence[int] = ()
) -> list[int]:
    return [i for step in await steps_of(engine, request, accepted) for i in step.ids]


def half_characters(engine: base.Engine, ids: Sequence[int]) -> list[int]:
    """Places of `ids` within a character."""
    detokenizer = engine.detokenizer()
    texts = [detokenizer.push([i]) for i in ids]
    return [at for at, text in enumerate(texts, 1) if not text]


async def check_cuts(
    engine: base.Engine, request: records.Request, whole: Sequence[int], places: Sequence[int]
) -> None:
    """An attempt that continues behind each of these places makes the rest of `whole`."""
    rests = await asyncio.gather(*[answer(engine, request, whole[:k]) for k in places])
    different = {
        k: text_of(engine, rest)
        for k, rest in zip(places, rests, strict=True)
        if [*whole[:k], *rest] != [*whole]
    }
    assert different == {}, text_of(engine, whole)


def text_of(engine: base.Engine, ids: Sequence[int]) -> str:
    detokenizer = engine.detokenizer()
    return detokenizer.push(ids) + detokenizer.flush()


# ---- arguments, metrics and classes ----------------------------------------------------------


async def test_the_pools_engine_arguments_reach_the_engine(engine: vllm.VLLM) -> None:
    assert engine.config.scheduler_config.max_num_batched_tokens == 3072


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"tensor_paralel_size": 2},
            r"no engine_args.tensor_paralel_size, perhaps 'tensor_par",
        ),
        ({"max_model_len": 5}, r"engine_args.max_model_len cannot be given: the pool's"),
        ({"seed": 1, "quantization": "x"}, r"cannot do engine_args.quantization here: Valid"),
        ({"enable_dbo": True}, r"cannot do engine_args.enable_dbo = True here: it takes False"),
    ],
)
async def test_an_argument_that_vllm_cannot_do_is_refused_by_name(
    folder: Path, given: dict[str, Any], said: str
) -> None:
    made = vllm.VLLM(model=str(folder), capacity=4, max_model_len=2048, engine_args=given)
    with pytest.raises(base.ArgumentRefused, match=said):
        await made.start()
    await made.shutdown()


async def test_vllms_own_metrics_are_exposed(engine: vllm.VLLM) -> None:
    before = metric("generation_tokens_total")
    made = await answer(engine, ask(ignore_eos=True, max_tokens=9))
    assert (len(made), metric("generation_tokens_total") - before) == (9, 9)


async def test_the_blocks_of_a_prompt_are_held_until_the_cache_is_reset(
    engine: vllm.VLLM,
) -> None:
    request = ask("Tell me of the sea and of ships. " * 120, max_tokens=2)
    prompt, blocks = await engine.encode(request), engine.cached_blocks
    assert blocks is not None
    keys = blocks.keys(prompt, engine.prefix_scope(request))
    whole = len(keys)
    assert (blocks.prefix_length(keys), whole > 2) == (0, True)
    await answer(engine, request)
    await eventually(lambda: blocks.prefix_length(keys) == whole, "all full blocks are held")
    assert blocks.prefix_length(blocks.keys(prompt, ("another tenant",))) == 0
    cached = (await steps_of(engine, request))[-1].cached_tokens
    assert cached in (whole * blocks.size, (whole - 1) * blocks.size)
    assert await engine._llm.reset_prefix_cache()
    await answer(engine, ask("And you?", max_tokens=1))  # vLLM tells at its next step
    await eventually(lambda: blocks.prefix_length(keys) == 0, "none is held")


async def test_a_slot_goes_to_the_higher_class_although_others_wait_longer(
    engine: vllm.VLLM,
) -> None:
    order: list[str] = []
    full, free = asyncio.Event(), asyncio.Event()

    async def run(name: str, rank: int, max_tokens: int) -> None:
        def on_step(_step: base.Step) -> bool:
            if name not in order:
                order.append(name)
            if len(order) == CAPACITY:
                full.set()
            return not (name == "first" and free.is_set())

        request = ask(max_tokens=max_tokens, ignore_eos=True)
        prompt = await engine.encode(request)
        token = os.urandom(16).hex()
        job = base.GenerationInput(request, token, prompt, [], max_tokens, rank=rank)
        await engine.generate(job, on_step)

    names = ["first", *map(str, range(1, CAPACITY))]
    running = [asyncio.create_task(run(name, 1, 1_900)) for name in names]
    await full.wait()
    queued = []
    for name, rank in (("low", 1), ("lower", 1), ("high", 0)):
        queued.append(asyncio.create_task(run(name, rank, 2)))
        count = len(queued)
        await eventually(lambda: metric("num_requests_waiting") == count, "it waits")  # noqa: B023
    free.set()
    await asyncio.gather(*queued)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert order[CAPACITY:] == ["high", "low", "lower"]


# ---- sampling --------------------------------------------------------------------------------


async def test_the_least_number_of_tokens_holds_over_a_takeover(engine: vllm.VLLM) -> None:
    [end] = sorted(engine.stop_ids)[:1]
    wants_to_end: dict[str, Any] = {"logit_bias": {str(end): 100.0}}
    assert await answer(engine, ask(**wants_to_end)) == [end]
    request = ask(**wants_to_end, min_tokens=6)
    whole = await answer(engine, request)
    assert len(whole) == 7
    assert whole[-1] == end
    assert whole[:4] + await answer(engine, request, whole[:4]) == whole


async def test_an_end_that_is_ignored_is_a_token_like_others(engine: vllm.VLLM) -> None:
    [end] = sorted(engine.stop_ids)[:1]
    request = ask(logit_bias={str(end): 100.0}, ignore_eos=True, max_tokens=5)
    assert await answer(engine, request) == [end] * 5


@pytest.mark.parametrize("bound", [{"top_k": 1}, {"min_p": 1.0}])
async def test_bounds_that_leave_one_token_make_a_hot_answer_the_greedy_one(
    engine: vllm.VLLM, bound: dict[str, Any]
) -> None:
    hot: dict[str, Any] = {"temperature": 2.0, "seed": 7}
    greedy = await answer(engine, ask())
    assert await answer(engine, ask(**hot)) != greedy
    assert await answer(engine, ask(**hot, **bound)) == greedy


async def test_a_penalty_on_repetitions_counts_what_former_attempts_said(
    engine: vllm.VLLM,
) -> None:
    [favourite, *_] = await answer(engine, ask(max_tokens=2))
    insists: dict[str, Any] = {"logit_bias": {str(favourite): 40.0}, "max_tokens": 6}
    assert await answer(engine, ask(**insists)) == [favourite] * 6
    request = ask(**insists, repetition_penalty=2.0)
    whole = await answer(engine, request)
    again = whole[:3] + await answer(engine, request, whole[:3])
    assert again == whole


# ---- log probabilities -----------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 20])
async def test_every_token_has_its_log_probability_and_the_likeliest_ones(
    engine: vllm.VLLM, count: int
) -> None:
    found = await steps_of(engine, ask(logprobs=count, max_tokens=8))
    assert all(len(step.ids) == len(step.logprobs) for step in found)
    lps = [lp for step in found for lp in step.logprobs]
    assert len(lps) == 8
    for lp in lps:
        assert len(lp.top) == count
        odds = [one.logprob for one in lp.top]
        assert odds == sorted(odds, reverse=True)
        assert sum(map(math.exp, odds)) < 1.0001
        if count:
            assert (lp.top[0].token, lp.top[0].logprob) == (lp.token, lp.logprob)
    assert not any(s.logprobs for s in await steps_of(engine, ask(max_tokens=3)))


async def test_bytes_of_tokens_that_are_half_a_character_make_the_text(
    engine: vllm.VLLM,
) -> None:
    text = "日😀é ok\n"
    ids = await engine.token_ids(text)
    lps: list[records.Lp] = []
    for n, token in enumerate(ids):  # each said because nothing else may be
        request = ask(logprobs=2, logit_bias={str(token): 100.0}, max_tokens=n + 1)
        [step, *_] = [s for s in await steps_of(engine, request, ids[:n]) if s.ids]
        assert list(step.ids) == [token]
        lps += step.logprobs
    said = b"".join(bytes.fromhex(lp.raw) if lp.raw else lp.token.encode() for lp in lps)
    assert said.decode() == text
    assert any(lp.raw for lp in lps), "a character of this text has several tokens"


async def test_a_marker_is_no_text_of_the_answer(engine: vllm.VLLM) -> None:
    [end] = sorted(engine.stop_ids)[:1]
    [step, *_] = await steps_of(engine, ask(logprobs=1, logit_bias={str(end): 100.0}))
    [lp] = step.logprobs
    assert (lp.token, lp.raw) == ("", "")
    assert lp.top


# ---- formats ---------------------------------------------------------------------------------


async def test_an_answer_has_the_format_that_was_asked_for(engine: vllm.VLLM) -> None:
    weather = {"choices": ["sunny", "rainy"], "type": "choice"}
    assert text_of(engine, await answer(engine, ask(format=weather))) in ("sunny", "rainy")
    digits = {"type": "regex", "pattern": "[0-9]{3}-[0-9]{2}"}
    assert re.fullmatch(
        "[0-9]{3}-[0-9]{2}", text_of(engine, await answer(engine, ask(format=digits)))
    )
    ebnf = {"type": "grammar", "definition": 'root ::= "a" ("b" | "c") "d"'}
    assert text_of(engine, await answer(engine, ask(format=ebnf))) in ("abd", "acd")
    thing = {"type": "json_object"}
    found = text_of(engine, await answer(engine, ask(format=thing, max_tokens=400)))
    assert found.startswith("{")


async def test_structured_answers_are_announced_as_resumable(engine: vllm.VLLM) -> None:
    assert {"logprobs", "formats", "formats_resumable"} <= engine.features


async def test_the_parsers_are_named_and_their_state_is_as_expected(engine: vllm.VLLM) -> None:
    assert engine.parsers == ("hermes", "deepseek_r1")
    assert private_parts.changes(vllm_internals.PARSER_PARTS) == []


@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
@pytest.mark.parametrize("name", schemas.SOME)
async def test_a_json_answer_that_is_continued_anywhere_is_the_uninterrupted_one(
    engine: vllm.VLLM, name: str, everywhere: bool
) -> None:
    """And it is valid for its schema, where it came to its end."""
    schema = schemas.SCHEMAS[name]
    request = ask(format={"type": "json_schema", "schema": schema}, max_tokens=120)
    whole = await answer(engine, request)
    said = text_of(engine, whole)
    if whole[-1] in engine.stop_ids:
        jsonschema.validate(json.loads(said), schema)
    else:
        assert name in schemas.ENDLESS, said
    seams = half_characters(engine, whole)
    await check_cuts(
        engine, request, whole, cuts.places(1, len(whole), seams, everywhere=everywhere)
    )


async def test_accepted_tokens_that_do_not_fit_the_format_cannot_be_continued(
    engine: vllm.VLLM,
) -> None:
    request = ask(format={"type": "regex", "pattern": "[0-9]{8}"})
    with pytest.raises(base.NotResumable):
        await answer(engine, request, await engine.token_ids("abc"))
    assert await answer(engine, ask(max_tokens=2)), "the engine serves the next one"


async def test_without_the_plugin_a_structured_answer_is_not_continued(
    engine: vllm.VLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ask(format={"type": "regex", "pattern": "[0-9]{8}"})
    whole = await answer(engine, request)
    monkeypatch.setattr(engine, "features", engine.features - {"formats_resumable"})
    with pytest.raises(base.NotResumable):
        await answer(engine, request, whole[:3])


async def test_a_format_that_the_engine_does_not_know_is_refused(engine: vllm.VLLM) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    for bad in (
        {"type": "json_schema", "schema": schema},
        {"type": "grammar", "definition": "root ::= ("},
    ):
        with pytest.raises(base.Refused) as caught:
            await answer(engine, ask(format=bad))
        assert caught.value.code == "invalid_prompt"


async def test_a_refusal_names_the_field_at_fault(engine: vllm.VLLM) -> None:
    with pytest.raises(base.Refused) as caught:
        await answer(engine, ask(logit_bias={"99999999": 1.0}))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "logit_bias")


# ---- items -----------------------------------------------------------------------------------


def tool(name: str, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": name, "description": "d", "parameters": parameters, "strict": strict}
    return {"type": "function", "function": function}


CITY = {"type": "string", "maxLength": 8}
TOOLS = [tool("weather", city=CITY), tool("now", zone={"enum": ["UTC", "CET"]})]


async def test_bounded_texts_hold_no_control_characters(engine: vllm.VLLM) -> None:
    """A model that insists on one: JSON has it only as an escape."""
    [tab] = await engine.token_ids("\t")
    insists: dict[str, Any] = {"logit_bias": {str(tab): 100.0}, "max_tokens": 60}
    bounded = {"type": "string", "maxLength": 6}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"a": bounded},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "schema": schema}
    said = text_of(engine, await answer(engine, ask(format=form, **insists)))
    assert set(json.loads(said)) == {"a"}
    request = ask(
        tools=[tool("weather", strict=True, city=bounded)],
        tool_choice=records.ToolChoice("required"),
        parallel_tool_calls=False,
        **insists,
    )
    [(kind, name, arguments)] = items_of(
        await pieces_of(engine, request, await answer(engine, request))
    )
    assert (kind, name, set(json.loads(arguments))) == ("c", "weather", {"city"})


async def pieces_of(
    engine: vllm.VLLM, request: records.Request, ids: Sequence[int]
) -> list[list[base.Piece]]:
    """What each id adds, and at last what the end adds."""
    parser = await engine.item_parser(request, await engine.encode(request))
    return [*[list(parser.push(i)) for i in ids], list(parser.finish())]


def items_of(pieces: Sequence[Sequence[base.Piece]]) -> list[tuple[str, str, str]]:
    """(kind, name, text) of each item."""
    items: list[tuple[str, str, str]] = []
    for piece in (one for some in pieces for one in some):
        if not items or piece.name or items[-1][0] != piece.kind:
            items.append((piece.kind, piece.name, ""))
        kind, name, text = items[-1]
        items[-1] = (kind, name, text + piece.text)
    return items


async def read(engine: vllm.VLLM, text: str, **more: Any) -> list[tuple[str, str, str]]:
    request = ask(**{"tools": TOOLS, **more})
    return items_of(await pieces_of(engine, request, await engine.token_ids(text)))


def seams_of(pieces: Sequence[Sequence[base.Piece]]) -> list[int]:
    """Places at which an item begins."""
    found, kind = [], ""
    for at, some in enumerate(pieces):
        for piece in some:
            if piece.name or piece.kind != kind:
                found.append(at)
            kind = piece.kind
    return found


CALL_1 = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich 日😀"}}\n</tool_call>'
CALL_2 = '<tool_call>{"name": "now", "arguments": {"zone": "UTC"}}</tool_call>'
ONE = ("c", "weather", '{"city": "Zürich 日😀"}')
TWO = ("c", "now", '{"zone": "UTC"}')
THINKS = {"reasoning": None}
TEXTS: dict[str, tuple[str, dict[str, Any], list[tuple[str, str, str]]]] = {
    "text": ("Hello 日😀.", {}, [("m", "", "Hello 日😀.")]),
    "two calls": (CALL_1 + "\n" + CALL_2, {}, [ONE, TWO]),
    "text around calls": (
        "Let me see.\n" + CALL_1 + "\nAnd " + CALL_2 + " so.",
        {},
        [("m", "", "Let me see.\n"), ONE, ("m", "", "\nAnd "), TWO, ("m", "", " so.")],
    ),
    "no call": ("a <tool_c b < c", {}, [("m", "", "a <tool_c b < c")]),
    "a call that is no JSON": (
        "<tool_call>not json at all</tool_call> done",
        {},
        [("m", "", "<tool_call>not json at all</tool_call> done")],
    ),
    "arguments before the name": (
        '<tool_call>{"arguments": {"name": "Rome", "n": 1}, "name": "now"}</tool_call>ok',
        {},
        [("c", "now", '{"name": "Rome", "n": 1}'), ("m", "", "ok")],
    ),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', {}, [("c", "now", "{}")]),
    "cut in its name": (
        'So <tool_call>{"name": "no',
        {},
        [("m", "", 'So <tool_call>{"name": "no')],
    ),
    "cut in its arguments": (
        '<tool_call>{"name": "now", "arguments": {"zo',
        {},
        [("c", "now", '{"zo')],
    ),
    "cut in a mark": (CALL_2[:-8], {}, [TWO]),
    "reasoning": (
        "<think>I need the 天気.</think>\n\nSure.",
        THINKS,
        [("r", "", "I need the 天気."), ("m", "", "\n\nSure.")],
    ),
    "reasoning that the prompt began": (
        "Hm.</think>Sure." + CALL_1,
        THINKS,
        [("r", "", "Hm."), ("m", "", "Sure."), ONE],
    ),
    "reasoning and a call": ("<think>Hm.</think>\n" + CALL_2, THINKS, [("r", "", "Hm."), TWO]),
    "only reasoning": ("<think>Hm, 日", THINKS, [("r", "", "Hm, 日")]),
    "empty reasoning": ("<think>\n\n</think>Yes", THINKS, [("m", "", "Yes")]),
}


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_is_read_as_items_and_nothing_of_it_is_lost(
    engine: vllm.VLLM, name: str
) -> None:
    text, more, items = TEXTS[name]
    assert await read(engine, text, **more) == items


@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
async def test_what_takes_over_anywhere_finds_the_same_pieces(
    engine: vllm.VLLM, everywhere: bool
) -> None:
    for text, more, _ in TEXTS.values():
        request = ask(tools=TOOLS, **more)
        ids = await engine.token_ids(text)
        whole = await pieces_of(engine, request, ids)
        seams = [*seams_of(whole), *half_characters(engine, ids)]
        for k in cuts.places(0, len(ids), seams, everywhere=everywhere):
            assert (await pieces_of(engine, request, ids[:k]))[:-1] == whole[:k]


async def test_two_ids_at_once_would_be_read_differently(engine: vllm.VLLM) -> None:
    """So the tests above would see it."""
    different = 0
    for text, more, items in TEXTS.values():
        request = ask(tools=TOOLS, **more)
        parser: Any = await engine.item_parser(request, await engine.encode(request))
        ids, found = await engine.token_ids(text), []
        for at in range(0, len(ids), 2):
            for i in ids[at : at + 2]:
                parser._block.append(i)
                parser._block_text += parser._kit.detokenizer.push((i,))
            found.append(parser._feed_block(finished=False))
        different += items_of([*found, parser.finish()]) != items
    assert different


async def test_a_custom_tools_input_is_its_text(engine: vllm.VLLM) -> None:
    patch = {"type": "custom", "custom": {"name": "patch", "description": "p"}}
    more = {"tools": [*TOOLS, patch]}
    said = r'{"input": "a\n\"b\" \ud83d\ude00 日"}'
    call = '<tool_call>{"name": "patch", "arguments": ' + said + "}</tool_call>"
    assert await read(engine, call + CALL_2, **more) == [("x", "patch", 'a\n"b" 😀 日'), TWO]


# ---- tools -----------------------------------------------------------------------------------


async def test_the_template_shows_tools_and_calls_to_the_model(engine: vllm.VLLM) -> None:
    request = ask(tools=TOOLS)
    assert '"weather"' in text_of(engine, await engine.encode(request))
    assert {"tools", "custom_tools", "reasoning"} <= engine.features
    none = ask(tools=TOOLS, tool_choice=records.ToolChoice("none"))
    assert '"weather"' not in text_of(engine, await engine.encode(none))
    assert "hermes" not in engine.parser_name(none)
    assert engine.parser_name(request).startswith("hermes+deepseek_r1@vllm-")


CHOICES: dict[str, dict[str, Any]] = {
    "required": {"tool_choice": records.ToolChoice("required")},
    "one": {"tool_choice": records.ToolChoice("required"), "parallel_tool_calls": False},
    "named": {"tool_choice": records.ToolChoice("required", ("now",))},
    "allowed": {
        "tool_choice": records.ToolChoice("auto", ("now",)),
        "logit_bias": {"14": 30.0},
    },
    "auto": {"logit_bias": {"14": 30.0}, "parallel_tool_calls": False},
    "at most one": {"tool_choice": records.ToolChoice("required"), "max_tool_calls": 1},
}


@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
@pytest.mark.parametrize("name", CHOICES)
async def test_calls_that_are_continued_anywhere_are_the_uninterrupted_ones(
    engine: vllm.VLLM, name: str, everywhere: bool
) -> None:
    request = ask(tools=TOOLS, max_tokens=90, **CHOICES[name])
    whole = await answer(engine, request)
    pieces = await pieces_of(engine, request, whole)
    items = items_of(pieces)
    calls = [i for i in items if i[0] == "c"]
    assert calls
    ended = whole[-1] in engine.stop_ids
    # At the limit of tokens a call may have no name yet. Then it is text.
    assert not [i for i in (items if ended else items[:-1]) if i[0] == "m"], items
    complete = calls if ended else calls[:-1]
    for _, called, arguments in complete:
        [schema] = [t["function"]["parameters"] for t in TOOLS if t["function"]["name"] == called]
        jsonschema.validate(json.loads(arguments), schema)
    if name in ("named", "allowed"):
        assert {called for _, called, _ in calls} == {"now"}
    if name in ("one", "at most one"):
        assert len(complete) == len(calls) == 1
    seams = [*seams_of(pieces), *half_characters(engine, whole)]
    await check_cuts(
        engine, request, whole, cuts.places(1, len(whole), seams, everywhere=everywhere)
    )


async def test_a_parser_that_does_not_fit_is_left_out_or_refused(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    fits = vllm_parsers.Names("hermes", "qwen3")
    assert vllm_parsers.fitting(fits, "hermes", "qwen3", tokenizer) == fits
    found = vllm_parsers.Names("mistral", "mistral")  # of a tokenizer of another kind
    assert vllm_parsers.fitting(found, "auto", "auto", tokenizer) == vllm_parsers.Names("", "")
    for named in (("mistral", "auto"), ("auto", "mistral"), ("no_such_parser", "none")):
        names = vllm_parsers.names(*named, "", "")
        with pytest.raises(base.EngineDead):
            vllm_parsers.fitting(names, *named, tokenizer)


GRAMMARS = {
    "lark": 'start: "a" /[b-d"]{2}/ "\\n" /[^x\\n]/',
    "regex": r'a[b-d"]{2}\n[^x\n]',
}


@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
@pytest.mark.parametrize("syntax", GRAMMARS)
async def test_a_custom_tools_input_obeys_its_grammar(
    engine: vllm.VLLM, syntax: str, everywhere: bool
) -> None:
    form = {"type": "grammar", "syntax": syntax, "definition": GRAMMARS[syntax]}
    custom = {"name": "write", "description": "d", "format": form}
    choice = records.ToolChoice("required", ("write",))
    made: dict[str, Any] = {
        "tools": [*TOOLS, {"type": "custom", "custom": custom}],
        "tool_choice": choice,
    }
    for favourite in ("", '\\"', "\\\\"):
        tokens = (await engine.token_ids(favourite))[:1]
        bias = {str(token): 20.0 for token in tokens}
        request = ask(**made, logit_bias=bias, max_tokens=60)
        whole = await answer(engine, request)
        pieces = await pieces_of(engine, request, whole)
        [(kind, name, text)] = items_of(pieces)
        assert (kind, name) == ("x", "write")
        assert re.fullmatch(r'a[b-d"]{2}\n[^x\n]', text), text
        places = cuts.places(1, len(whole), seams_of(pieces), everywhere=everywhere)
        await check_cuts(engine, request, whole, places)


async def test_a_grammar_that_cannot_be_read_is_refused(engine: vllm.VLLM) -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: ("}
    custom = {"name": "write", "description": "d", "format": form}
    with pytest.raises(base.Refused):
        await answer(engine, ask(tools=[{"type": "custom", "custom": custom}]))


FORMAT = {"type": "json_schema", "schema": schemas.SCHEMAS["two members"]}
REQUIRED = {"tools": TOOLS, "tool_choice": records.ToolChoice("required", ("now",))}


@pytest.mark.parametrize("everywhere", cuts.SOME_OR_ALL)
@pytest.mark.parametrize("more", [{"format": FORMAT}, REQUIRED], ids=["format", "call"])
async def test_what_obeys_a_grammar_behind_the_reasoning_is_continued_anywhere(
    engine: vllm.VLLM, more: dict[str, Any], everywhere: bool
) -> None:
    """It thinks these words because they are accepted, and no more because of the bias."""
    ends = {str(toy_tools.THINK_END): 100.0}
    request = ask(max_tokens=70, logit_bias=ends, reasoning=None, **more)
    thought_ids = await engine.token_ids("I think of 天気 and 😀.")
    whole = [*thought_ids, *await answer(engine, request, thought_ids)]
    assert whole[len(thought_ids)] == toy_tools.THINK_END
    pieces = await pieces_of(engine, request, whole)
    items = items_of(pieces)
    assert len(items) == 2, (items, whole)
    [thought, last] = items
    assert thought == ("r", "", "I think of 天気 and 😀.")
    assert last[0] == ("m" if "format" in more else "c")
    if "format" in more:
        jsonschema.validate(json.loads(last[2]), schemas.SCHEMAS["two members"])
    else:
        assert json.loads(last[2])["zone"] in ("UTC", "CET")
    seams = seams_of(pieces)
    await check_cuts(
        engine,
        request,
        whole,
        cuts.places(len(thought_ids), len(whole), seams, everywhere=everywhere),
    )
