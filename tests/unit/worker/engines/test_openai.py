"""The engine over HTTP, asked directly: when it counts as started, what it asks, what it continues,
and what its server's failures become."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.protocol import records
from tests.support import cases, openai_server
from tests.support.openai_server import Refusal
from tests.support.waiting import eventually
from worker.engines import (
    base,
    openai,
    openai_answers,
    openai_body,
    openai_credentials,
    openai_items,
    openai_pace,
)
from worker.engines.openai_items import code_points
from worker.text.item_parser import Piece

TOOL: dict[str, Any] = {"type": "function", "function": {"name": "weather", "parameters": {}}}


class Silent:
    """Answers each request with the next of these, without a body; None closes the connection
    without an answer. After them it knows no path."""

    def __init__(self, *answers: int | None) -> None:
        self.answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readuntil(b"\r\n\r\n")
            status = self.answers.pop(0) if self.answers else 404
            if status is not None:
                head = f"HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                writer.write(head.encode())
                await writer.drain()

    @contextlib.asynccontextmanager
    async def engine(self) -> AsyncIterator[openai.OpenAI]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            made = openai.OpenAI(url=f"http://127.0.0.1:{port}", model="m", capacity=1)
            try:
                yield made
            finally:
                await made.shutdown()


@pytest.fixture
async def server() -> AsyncIterator[openai_server.Server]:
    async with openai_server.Server() as made:
        yield made


@contextlib.asynccontextmanager
async def engine_of(
    server: openai_server.Server, *, start: bool = True, **options: Any
) -> AsyncIterator[openai.OpenAI]:
    engine = openai.OpenAI(url=server.url, model="m", **{"capacity": 8, **options})
    try:
        if start:
            await asyncio.wait_for(engine.start(), 20)
        yield engine
    finally:
        await engine.shutdown()


def ask(text: str = "say 5", max_tokens: int = 50, **more: Any) -> records.Request:
    sampling = more.pop("sampling", records.Sampling(max_tokens, temperature=0.0))
    messages = [{"role": "user", "content": text}]
    return records.Request("resp_x", records.Owner("i", "s"), "m", messages, sampling, {}, **more)


async def told(
    engine: base.Engine, request: records.Request, so_far: str | list[int] = ""
) -> tuple[str, base.Step]:
    """The text of the answer and its last step."""
    ids, last = await made(engine, request, so_far)
    return "".join(map(chr, ids)), last


async def made(
    engine: base.Engine, request: records.Request, so_far: str | list[int] = ""
) -> tuple[list[int], base.Step]:
    """The ids of the answer and its last step."""
    before = code_points(so_far) if isinstance(so_far, str) else so_far
    job = base.GenerationInput(request, "f", [], before, request.sampling.max_tokens)
    steps: list[base.Step] = []
    await engine.generate(job, kept_in(steps))
    return [i for step in steps for i in step.ids], steps[-1]


def kept_in(steps: list[base.Step]) -> base.OnStep:
    def on_step(step: base.Step) -> bool:
        steps.append(step)
        return True

    return on_step


# ---- start


@pytest.mark.parametrize("loading", [None, 401, 500, 503])
async def test_it_has_started_once_the_server_answers_and_takes_the_credential(
    monkeypatch: pytest.MonkeyPatch, loading: int | None
) -> None:
    monkeypatch.setattr(openai, "PROBE_PAUSE_S", 0.0)
    server = Silent(loading, loading, 200)
    async with server.engine() as engine:
        await asyncio.wait_for(engine.start(), 10)
        assert server.answers == []


async def test_a_server_without_a_list_of_models_has_started_too() -> None:
    server = Silent(404)
    async with server.engine() as engine:
        await asyncio.wait_for(engine.start(), 10)
        assert server.answers == []


async def test_while_the_credential_is_refused_it_waits_and_says_so(
    server: openai_server.Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "PROBE_PAUSE_S", 0.0)
    server.keys = {"right"}
    path = tmp_path / "key"
    path.write_text("wrong\n")
    key = openai_credentials.KeyFile(path)
    async with engine_of(server, start=False, credentials=key) as engine:
        starting = asyncio.create_task(engine.start())
        await eventually(lambda: engine.trouble, "it says what it waits for", every_s=0.005)
        assert engine.trouble == "the server refuses the credential (401)"
        path.write_text("right\n")
        await asyncio.wait_for(starting, 10)
        assert engine.trouble == ""


async def test_a_server_that_ignores_what_it_does_not_know_offers_nothing(
    server: openai_server.Server,
) -> None:
    async with engine_of(server) as engine:
        assert engine.features == {"images"}
        with pytest.raises(base.NotResumable):
            await told(engine, ask(), "wörd0 ")
    assert server.requests == []
    continuations = [q for q in server.questions if q["max_tokens"] == 1]
    assert len(continuations) == 2  # each costs a hosted API's tokens


async def test_a_server_that_honours_only_one_of_the_two_members_does_not_continue(
    server: openai_server.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the last message and begins no other one: its prompts are shorter with the members,
    too."""
    server.continues = True
    monkeypatch.setattr(openai_body, "CONTINUED", {"unknown": True, "add_generation_prompt": False})
    async with engine_of(server) as engine:
        with pytest.raises(base.NotResumable):
            await told(engine, ask(), "wörd0 ")


async def test_features_are_what_the_server_has_shown(server: openai_server.Server) -> None:
    server.formats = server.tools = True
    async with engine_of(server) as engine:
        assert engine.features == {"images", "formats", "tools"}


async def test_a_server_that_says_no_to_canaries_with_500_starts(
    server: openai_server.Server,
) -> None:
    server.broken = True
    async with engine_of(server, start=False) as engine:
        engine.trouble = "no connection"
        await asyncio.wait_for(engine.start(), 20)
        assert engine.features == {"images"}
        assert engine.trouble == ""


# ---- what is asked


async def test_only_what_the_client_asked_for_is_sent(server: openai_server.Server) -> None:
    async with engine_of(server) as engine:
        await told(engine, ask())
        chosen = records.Sampling(
            50, top_k=3, min_p=0.1, repetition_penalty=1.2, min_tokens=4, ignore_eos=True, seed=7
        )
        await told(engine, ask(sampling=chosen))
    plain, full = server.requests
    assert set(plain) == {
        *("model", "messages", "max_tokens", "temperature", "top_p", "stream", "stream_options")
    }
    asked = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 4, "seed": 7}
    assert {k: v for k, v in full.items() if k not in plain} == {**asked, "ignore_eos": True}


async def test_vllm_is_told_whose_prompt_it_caches(server: openai_server.Server) -> None:
    server.continues = True  # and counts tokens, as vLLM does
    async with engine_of(server) as engine:
        await told(engine, ask())
    assert server.requests[0]["cache_salt"] == records.Owner("i", "s").cache_scope


@cases.each(
    ("choice", "sent", "names"),
    [
        (records.ToolChoice(), "auto", ["weather", "time"]),
        (records.ToolChoice("none"), "none", ["weather", "time"]),
        (records.ToolChoice("auto", ("time",)), "auto", ["time"]),
        (
            records.ToolChoice("required", ("time",)),
            {"type": "function", "function": {"name": "time"}},
            ["time"],
        ),
    ],
)
def test_the_choice_of_tools_as_servers_take_it(
    choice: records.ToolChoice, sent: object, names: list[str]
) -> None:
    tools = [TOOL, {"type": "function", "function": {"name": "time", "parameters": {}}}]
    request = ask(tools=tools, tool_choice=choice, parallel_tool_calls=False)
    body = openai_body.body(request, "m", 5)
    assert body["tool_choice"] == sent
    assert [tool["function"]["name"] for tool in body["tools"]] == names
    assert body["parallel_tool_calls"] is False


def test_formats_as_servers_take_them() -> None:
    schema = {"type": "object"}
    body = openai_body.body(
        ask(format={"type": "json_schema", "schema": schema, "strict": True}), "m", 5
    )
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }
    with pytest.raises(base.Refused, match="`regex`") as caught:
        openai_body.body(ask(format={"type": "regex", "pattern": "a"}), "m", 5)
    assert caught.value.code == "unsupported_parameter"


# ---- answers


async def test_calls_and_reasoning_are_items_where_readers_know_them(
    server: openai_server.Server,
) -> None:
    server.tools = True
    async with engine_of(server) as engine:
        request = ask("call 1", tools=[TOOL])
        assert engine.parser_name(request) == "openai@1"
        ids, last = await made(engine, request)
        assert last.finish == "stop"
        parser = await engine.item_parser(request, [])
        pieces = [piece for token in ids for piece in parser.push(token)]
    assert _joined(pieces) == [
        ("m", "", "wörd0 "),
        ("c", "weather", '{"city": "Paris"}'),
        ("c", "weather", '{"city": "Rome"}'),
    ]


def _joined(pieces: list[Piece]) -> list[tuple[str, str, str]]:
    made: list[tuple[str, str, str]] = []
    for kind, text, name in pieces:
        if made and made[-1][0] == kind and not name:
            made[-1] = (kind, made[-1][1], made[-1][2] + text)
        else:
            made.append((kind, name, text))
    return made


def piece(number: int | None, id_: str | None, name: str | None, text: str) -> dict[str, Any]:
    """A piece of a call, as a delta."""
    function = {"name": name, "arguments": text}
    return {"tool_calls": [{"index": number, "id": id_, "function": function}]}


ADD, MULTIPLY = ("c", "add", '{"a": "}"}'), ("c", "multiply", '{"b": [2]}')


@cases.each(
    ("deltas", "items"),
    [
        # Ollama gives every call the number 0.
        ([piece(0, "x", "add", ADD[2]), piece(0, "y", "multiply", MULTIPLY[2])], [ADD, MULTIPLY]),
        ([piece(0, None, "add", ADD[2]), piece(0, None, "multiply", MULTIPLY[2])], [ADD, MULTIPLY]),
        (
            [
                *(piece(0, "x", "add", ""), piece(0, "", None, ADD[2])),
                *(piece(0, "y", "multiply", '{"b": '), piece(0, None, "", "[2]}")),
            ],
            [ADD, MULTIPLY],
        ),
        (
            [piece(None, "x", "add", ADD[2]), piece(None, "y", "multiply", MULTIPLY[2])],
            [ADD, MULTIPLY],
        ),
        # A server may repeat the name in each piece.
        ([piece(0, "x", "add", '{"a": '), piece(0, "x", "add", '"}"}')], [ADD]),
        # Pieces of parallel calls in turn.
        (
            [
                *(piece(0, "x", "add", ""), piece(1, "y", "multiply", '{"b": ')),
                *(piece(0, None, None, ADD[2]), piece(1, None, None, "[2]}")),
            ],
            [ADD, MULTIPLY],
        ),
        # vLLM may send a text between the pieces of a call.
        (
            [piece(0, "x", "add", '{"a": "'), {"content": "\n"}, piece(0, None, None, '}"}')],
            [ADD, ("m", "", "\n")],
        ),
        # What is no JSON is whole at the end.
        (
            [piece(0, "x", "add", '{"a": '), {"reasoning": "hm"}, {"content": "b"}],
            [("c", "add", '{"a": '), ("r", "", "hm"), ("m", "", "b")],
        ),
        ([piece(0, "x", "add", ""), piece(1, "y", "add", "")], [("c", "add", "")] * 2),
    ],
)
def test_the_pieces_of_calls_are_put_together(
    deltas: list[dict[str, Any]], items: list[tuple[str, str, str]]
) -> None:
    writer, parser = openai_items.Writer(), openai_items.Parser()
    ids = [token for delta in deltas for token in writer.delta(delta, items=True)]
    ids += writer.finish()
    assert _joined([p for token in ids for p in parser.push(token)]) == items


def test_a_call_is_written_as_it_comes() -> None:
    writer = openai_items.Writer()
    assert writer.delta(piece(0, "x", "f", '{"a'), items=True)[-3:] == code_points('{"a')
    assert writer.delta(piece(0, None, None, '":'), items=True) == code_points('":')
    with pytest.raises(openai_items.BadCall):
        writer.delta(piece(1, "y", None, "{}"), items=True)


async def test_reasoning_is_left_out_of_a_plain_answer_and_is_a_sign_of_life(
    server: openai_server.Server,
) -> None:
    async with engine_of(server) as engine:
        steps: list[base.Step] = []
        job = base.GenerationInput(ask("think 1"), "f", [], [], 50)
        await engine.generate(job, kept_in(steps))
    assert [step.ids for step in steps[:2]] == [[], []]
    assert "".join(chr(i) for step in steps for i in step.ids) == "wörd0 "


async def test_a_comment_is_a_sign_of_life(server: openai_server.Server) -> None:
    async with engine_of(server) as engine:
        steps: list[base.Step] = []
        job = base.GenerationInput(ask("mute"), "f", [], [], 50)
        reading = asyncio.create_task(engine.generate(job, kept_in(steps)))
        await eventually(lambda: steps, "a step", every_s=0.005)
        assert list(steps[0].ids) == []
        reading.cancel()


async def test_a_filtered_answer_is_a_failure(server: openai_server.Server) -> None:
    async with engine_of(server) as engine:
        with pytest.raises(base.Refused) as caught:
            await told(engine, ask("filtered 1"))
    assert caught.value.code == "content_filter"


@pytest.mark.parametrize("cue", ["cut 9", "garbage 9", "error 9", "endless 4"])
async def test_a_stream_that_is_not_whole_may_be_tried_again(
    server: openai_server.Server, cue: str
) -> None:
    async with engine_of(server) as engine:
        with pytest.raises(base.Transient) as caught:
            await told(engine, ask(cue))
    assert not isinstance(caught.value, base.Busy)


async def test_separators_of_unicode_inside_of_a_chunk_do_not_end_its_line() -> None:
    chunk = {"choices": [{"delta": {"content": "a\u2028b\x85c"}, "finish_reason": "stop"}]}

    async def content() -> AsyncIterator[bytes]:
        line = f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n".encode()
        for at in range(0, len(line), 7):
            yield line[at : at + 7]

    begun = openai_answers.Prefix()
    steps = [step async for step in openai_answers.steps(content(), begun, items=False)]
    assert "".join(chr(i) for step in steps for i in step.ids) == "a\u2028b\x85c"


# ---- continuation


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("cut", ["wörd0", "wörd0 wörd1 ", "wörd0 wörd1 wörd2"])
async def test_a_continued_answer_is_the_whole_one(
    server: openai_server.Server, cut: str, trims: bool
) -> None:
    server.continues, server.trims = True, trims
    async with engine_of(server) as engine:
        whole, alone = await told(engine, ask())
        rest, last = await told(engine, ask(), cut)
    assert cut + rest == whole
    assert last.finish == alone.finish
    sent = server.requests[1]
    assert sent["messages"][-1] == {"role": "assistant", "content": cut.rstrip()}
    assert sent["continue_final_message"] is True
    assert sent["max_tokens"] == 50 - len(cut.split())
    assert last.usage == alone.usage


@pytest.mark.parametrize("trims", [False, True])
async def test_a_new_line_at_the_end_is_sent_where_the_template_keeps_it(
    server: openai_server.Server, trims: bool
) -> None:
    server.continues, server.trims = True, trims
    async with engine_of(server) as engine:
        await told(engine, ask(), "wörd0\n\n")
    assert server.requests[0]["messages"][-1]["content"] == ("wörd0" if trims else "wörd0\n\n")


async def test_the_bound_counts_the_text_that_is_continued(server: openai_server.Server) -> None:
    server.continues = True
    async with engine_of(server) as engine:
        rest, last = await told(engine, ask("say 9", max_tokens=3), "wörd0 wörd1")
        assert (rest, last.finish) == (" wörd2 ", "length")
        assert last.usage is not None
        assert last.usage.output_tokens == 3
        rest, last = await told(engine, ask("say 9", max_tokens=2), "wörd0 wörd1")
        assert (rest, last.finish, last.usage) == ("", "length", records.Usage(8, 2, 2))


async def test_without_a_count_four_bytes_are_a_token(server: openai_server.Server) -> None:
    async with engine_of(server, continuation="on") as engine:
        await told(engine, ask(), "wörd0 wörd1 ")
    assert server.requests[0]["max_tokens"] == 50 - 4
    assert [q for q in server.questions if "continue_final_message" in q] == []


@pytest.mark.parametrize("so_far", ["", " wörd2", " wörd2 "])
async def test_the_text_of_the_last_message_is_continued(
    server: openai_server.Server, so_far: str
) -> None:
    server.continues = True
    given = {"role": "assistant", "content": "wörd0 wörd1"}
    async with engine_of(server) as engine:
        assert "continuation" in engine.features
        whole, _ = await told(engine, ask())
        asked = ask()
        asked = msgspec.structs.replace(
            asked, messages=[*asked.messages, given], continue_final=True
        )
        rest, last = await told(engine, asked, so_far)
    assert "wörd0 wörd1" + so_far + rest == whole
    sent = server.requests[1]
    begun = ("wörd0 wörd1" + so_far).rstrip()
    assert sent["messages"][-1] == {"role": "assistant", "content": begun}
    assert sent["messages"][:-1] == server.requests[0]["messages"]
    assert sent["continue_final_message"] is True
    assert sent["max_tokens"] == 50 - len(so_far.split())
    # What is continued is a part of the prompt; what a former attempt made is not.
    assert last.usage is not None
    assert last.usage.output_tokens == len(whole.split()) - 2


async def test_a_server_that_does_not_continue_text_says_no_such_feature(
    server: openai_server.Server,
) -> None:
    async with engine_of(server) as engine:
        assert "continuation" not in engine.features


async def test_continuation_may_be_switched_off(server: openai_server.Server) -> None:
    server.continues = True
    async with engine_of(server, continuation="off") as engine:
        with pytest.raises(base.NotResumable):
            await told(engine, ask(), "wörd0 ")


@pytest.mark.parametrize(
    ("more", "so_far"),
    [
        ({"format": {"type": "json_object"}}, code_points('{"a"')),
        ({"tools": [TOOL], "tool_choice": records.ToolChoice("required")}, code_points("I ")),
        ({"tools": [TOOL]}, [*code_points("I "), 0x110002, *code_points("weather")]),
        ({"tools": [TOOL]}, [0x110001, *code_points("hm")]),
    ],
)
async def test_what_text_alone_cannot_continue_is_not_continued(
    server: openai_server.Server, more: dict[str, Any], so_far: list[int]
) -> None:
    server.continues = server.tools = server.formats = True
    async with engine_of(server) as engine:
        with pytest.raises(base.NotResumable):
            await told(engine, ask(**more), so_far)
    assert server.requests == []


async def test_a_rest_that_begins_with_reasoning_is_not_taken_for_text(
    server: openai_server.Server,
) -> None:
    server.continues = True
    async with engine_of(server) as engine:
        with pytest.raises(base.NotResumable):
            await told(engine, ask("think 5"), "wörd0 ")


async def test_a_server_that_refuses_to_continue_makes_the_response_not_resumable(
    server: openai_server.Server,
) -> None:
    server.continues = True
    async with engine_of(server) as engine:
        server.refusals = [Refusal(400, error={"message": "the template has no such message"})]
        with pytest.raises(base.NotResumable):
            await told(engine, ask(), "wörd0 ")


# ---- refusals


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        (
            {
                "date": "Sun, 06 Nov 1994 08:49:37 GMT",
                "retry-after": "Sun, 06 Nov 1994 08:50:07 GMT",
            },
            30,
        ),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks(
    server: openai_server.Server, status: int, headers: dict[str, str], pause_s: float
) -> None:
    async with engine_of(server) as engine:
        bounds: list[int] = []
        engine.on_limit = bounds.append
        server.refusals = [Refusal(status, headers)]
        with pytest.raises(base.Busy) as caught:
            await told(engine, ask())
        assert caught.value.pause_s == pause_s
        assert caught.value.code == ("rate_limit_exceeded" if status == 429 else "server_error")
        assert bounds == [0]
        with pytest.raises(base.Busy):
            await told(engine, ask())  # it is not even asked
        assert len(server.requests) == 1
        assert engine.trouble == f"the server answered {status}"


@cases.each("asked", ["soon", "-3", "0", "inf", "nan", "", "Sun, 06 Nov 1994 08:50:07 GMT"])
def test_a_pause_that_is_none_or_cannot_be_read_is_left_to_the_back_off(asked: str) -> None:
    assert openai_answers.retry_after_s({"retry-after": asked}) is None


async def test_slots_open_again_by_themselves_and_grow_with_answers(
    server: openai_server.Server,
) -> None:
    async with engine_of(server) as engine:
        bounds: list[int] = []
        engine.on_limit = bounds.append
        server.refusals = [Refusal(429, {"retry-after-ms": "20"})]
        with pytest.raises(base.Busy):
            await told(engine, ask())
        await eventually(lambda: bounds[-1] > 0, "it opens", every_s=0.005)
        assert bounds == [0, 1]
        await told(engine, ask())
        assert bounds[-1] == 2


async def test_a_server_that_is_gone_is_busy_and_not_at_fault_of_the_request(
    server: openai_server.Server,
) -> None:
    async with engine_of(server, start=False) as engine:
        await server.__aexit__()
        with pytest.raises(base.Busy):
            await told(engine, ask())
        assert engine.trouble.startswith("no connection to the server")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_credential_is_the_operators_and_shows_nothing_of_it(
    server: openai_server.Server, status: int
) -> None:
    async with engine_of(server) as engine:
        server.refusals = [Refusal(status, error={"message": "Incorrect key: sk-12"})]
        with pytest.raises(base.Refused) as caught:
            await told(engine, ask())
        assert caught.value.code == "engine_unauthorized"
        assert "sk-12" not in str(caught.value)
        assert engine.trouble == f"the server refuses the credential ({status})"
        await told(engine, ask())
        assert engine.trouble == ""


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, {"message": "no", "code": 400}, "engine_refused"),
        (400, {"message": "no", "code": "invalid_value"}, "invalid_value"),
        (400, {"message": "This model's maximum context length is 5"}, "context_length_exceeded"),
        (
            400,
            {
                "message": "request (12 tokens) exceeds the available context size (9 tokens)",
                "type": "exceed_context_size_error",
                "code": 400,
            },
            "context_length_exceeded",
        ),
        (
            400,
            {"message": "The input (9 tokens) is longer than the model's context length (5)."},
            "context_length_exceeded",
        ),
        (400, {"message": "Prompt is too long: 9 tokens > 5 maximum"}, "context_length_exceeded"),
        (404, {"message": "no such model"}, "engine_misconfigured"),
        (429, {"message": "pay", "code": "insufficient_quota"}, "engine_unauthorized"),
    ],
)
async def test_what_cannot_succeed_fails_with_a_code(
    server: openai_server.Server, status: int, error: dict[str, Any], code: str
) -> None:
    async with engine_of(server) as engine:
        server.refusals = [Refusal(status, error=error)]
        with pytest.raises(base.Refused) as caught:
            await told(engine, ask())
    assert caught.value.code == code


# ---- pace


def test_a_burst_of_refusals_halves_once_and_answers_add_one_a_round() -> None:
    pace = openai_pace.Pace(16)
    for _ in range(5):
        assert pace.note_refusal(10.0, requested_s=2.0, draw=0.0, running=12) == 2.0
    assert (pace.limit, pace.limit_now(11.9), pace.limit_now(12.0)) == (6.0, 0, 6)
    for _ in range(6):
        pace.note_answer()
    assert 6.9 < pace.limit < 7.1
    for _ in range(1000):
        pace.note_answer()
    assert pace.limit_now(12.0) == 16


def test_pauses_grow_have_jitter_and_a_bound() -> None:
    pace, now = openai_pace.Pace(4), 0.0
    pauses = []
    for _ in range(9):
        pauses.append(pace.note_refusal(now, requested_s=None, draw=1.0))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30]
    assert pace.note_refusal(now, requested_s=None, draw=0.0) == 15
    pace.note_answer()
    assert pace.note_refusal(now + 60, requested_s=None, draw=0.0) == 0.5


def test_a_server_that_asks_for_hours_is_asked_again_within_a_minute() -> None:
    pace = openai_pace.Pace(4)
    assert pace.note_refusal(0.0, requested_s=86_400, draw=0.0) == 86_400
    assert (pace.limit_now(59.0), pace.limit_now(60.0)) == (0, 4)
