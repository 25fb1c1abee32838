"""Items: however the ids were cut into frames, and whoever continued them, clients see the same
items by the events of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import Omit
from openai.lib.streaming.responses import ResponseStreamState
from openai.types import responses as sdk
from pydantic import TypeAdapter

from tailrace.protocol import events, fold, ids, items, records
from tailrace.verify import history, outcome, reference_fold
from tests.support import response_grammar, strict_types, toy_parser

RID = ids.mint(ids.Address(b"test", 5, 6), bytes(range(11)))
REST = RID.removeprefix("resp_")
OWNER = records.Owner("i", "s")
ECHO = events.echo(RID, 1_700_000_000, "m")
SUMMARY = events.echo(RID, 1_700_000_000, "m", reasoning={"effort": None, "summary": "auto"})
_stream_event: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)


def claim(own: str, prev: str | None, parser: str = toy_parser.PARSER) -> records.Claim:
    return records.Claim(RID, own, prev, OWNER, "w", "t", 0, "rev", "tok", 9, {}, parser)


def log_of(
    answer: str,
    sizes: Iterable[int],
    takeovers: Sequence[int] = (),
    reason: str = "stop",
    *,
    logprobs: bool = False,
    step: int = 1,
) -> list[records.TokenRecord]:
    """What workers write that cut the answer into frames of these sizes; `takeovers`: another one
    takes over before the frame with this number."""
    state = fold.Fold(retain_ids=True)
    found: list[records.TokenRecord] = []

    def write(record: records.TokenRecord) -> None:
        decoded = records.decode_token(records.encode(record))
        assert decoded is not None
        outcome_ = state.apply(decoded, len(found))
        assert not isinstance(outcome_, fold.Ignored), outcome_
        found.append(decoded)

    write(claim("n0", None))
    worker = toy_parser.Worker(RID, "n0", logprobs=logprobs, step=step)
    rest = toy_parser.ids_of(answer)
    sizes = iter(sizes)
    for number in range(len(rest)):
        if not rest:
            break
        if number in takeovers:
            own = f"n{number + 1}"
            write(claim(own, worker.own))
            worker = toy_parser.Worker(
                RID, own, state.ids, state.text_length, state.mark_count, logprobs, step
            )
        size = next(sizes, len(rest))
        write(worker.frame(rest[:size]))
        rest = rest[size:]
    write(worker.end(reason))
    return found


def series_of(
    log: Iterable[records.TokenRecord], echo: dict[str, Any] = ECHO
) -> list[events.Event]:
    state, series = fold.Fold(), events.Series(echo)
    shown = series.open()
    for offset, record in enumerate(log):
        effect = state.apply(record, offset, 1_700_000_003_000)
        assert not isinstance(effect, fold.Ignored)
        shown += series.apply(effect)
    assert [e.sequence_number for e in shown] == list(range(len(shown)))
    return shown


def joined(shown: Iterable[events.Event]) -> list[dict[str, Any]]:
    """The events without numbers; deltas that follow each other are one."""
    out: list[dict[str, Any]] = []
    for event in shown:
        body = json.loads(event.body)
        del body["sequence_number"]
        if out and event.delta is not None and out[-1]["type"] == body["type"]:
            out[-1]["delta"] += body["delta"]
            if "logprobs" in body:
                out[-1]["logprobs"] += body["logprobs"]
        else:
            out.append(body)
    return out


def accounted(log: Iterable[records.TokenRecord]) -> reference_fold.Account:
    return reference_fold.account([history.Entry(i, 0, r) for i, r in enumerate(log)])


# Pieces that answers are made of: every kind of item, items without a character, text that looks
# like the beginning of a marker, at the end too.
PIECES = ["<r", "<m", '<cf|{"a":1}<e', "<cg|<e", "<ch|{", "Hello", "天気", "<", "<<", "é", ".", " "]
answers = st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join)
divisions = st.lists(st.integers(1, 9), max_size=40)
takeovers_ = st.lists(st.integers(1, 12), max_size=4)


@given(answers, divisions, takeovers_, st.booleans(), st.sampled_from(["stop", "length", "failed"]))
def test_a_takeover_anywhere_changes_no_byte(
    answer: str, sizes: list[int], takeovers: list[int], logprobs: bool, reason: str
) -> None:
    log = log_of(answer, sizes, (), reason, logprobs=logprobs)
    continued = log_of(answer, sizes, takeovers, reason, logprobs=logprobs)
    one, other = series_of(log), series_of(continued)
    assert [e.body for e in one] == [e.body for e in other]


@given(answers, divisions, divisions, st.booleans())
def test_a_division_into_frames_changes_only_how_deltas_are_cut(
    answer: str, sizes: list[int], others: list[int], logprobs: bool
) -> None:
    one = joined(series_of(log_of(answer, sizes, logprobs=logprobs)))
    other = joined(series_of(log_of(answer, others, logprobs=logprobs)))
    without = [b for b in one if b.get("delta") != ""], [b for b in other if b.get("delta") != ""]
    assert without[0] == without[1]


@given(answers, divisions, takeovers_, st.booleans(), st.booleans())
def test_the_judge_derives_the_same_events_and_the_same_marks(
    answer: str, sizes: list[int], takeovers: list[int], logprobs: bool, in_summary: bool
) -> None:
    log = log_of(answer, sizes, takeovers, logprobs=logprobs)
    account = accounted(log)
    derived = outcome.events(account, background=False, in_summary=in_summary)
    shown = series_of(log, SUMMARY if in_summary else ECHO)
    assert [(kind, delta) for kind, delta, _ in derived] == [(e.type, e.delta) for e in shown]
    state = fold.Fold()
    effects = [state.apply(r, i) for i, r in enumerate(log)]
    last = effects[-1]
    assert isinstance(last, fold.Ended)
    assert state.mark_count + len(last.marks) == len(account.marks)
    assert state.reasoning == account.reasoning == last.usage.reasoning_tokens
    if not last.marks and account.marks:
        assert state.last_mark is not None
        assert tuple(account.marks[-1]) == msgspec.structs.astuple(state.last_mark)
        assert state.open_kind == account.marks[-1].kind


@given(answers, divisions, takeovers_)
def test_deltas_done_events_and_the_final_object_hold_the_same_characters(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    shown = series_of(log_of(answer, sizes, takeovers))
    final = shown[-1].response
    assert final is not None
    account = accounted(log_of(answer, sizes, takeovers))
    texts = [_text(item) for item in final["output"]]
    assert "".join(texts) == account.text == "".join(e.delta or "" for e in shown)
    if any(account.text) or account.marks:
        assert texts == [part.text for part in account.parts]
    done = [json.loads(e.body)["item"] for e in shown if e.type == "response.output_item.done"]
    assert done == final["output"]
    assert len({item["id"] for item in done}) == len(done)


def _text(item: dict[str, Any]) -> str:
    for name in ("arguments", "input"):
        if name in item:
            return str(item[name])
    return "".join(part["text"] for part in item["content"])


@given(answers, divisions, st.booleans(), st.booleans())
def test_the_official_clients_types_and_its_stream_helper_accept_every_event(
    answer: str, sizes: list[int], logprobs: bool, in_summary: bool
) -> None:
    state = ResponseStreamState(
        input_tools=[], text_format=Omit()
    )  # raises at an item whose identity changes
    told: list[Any] = []
    echo = SUMMARY if in_summary else ECHO
    for event in series_of(log_of(answer, sizes, logprobs=logprobs), echo):
        parsed = _stream_event.validate_json(event.body, strict=True)
        assert parsed.type == event.type
        told += state.handle_event(parsed)
    assert told[-1].type == "response.completed"
    final = told[-1].response
    found = [item.model_dump()["id"] for item in final.output]
    assert found == [
        ids.item_id(RID, id_.split("_")[0] + "_", index) for index, id_ in enumerate(found)
    ]


def test_an_answer_with_every_kind_of_item_event_by_event() -> None:
    shown = joined(series_of(log_of(toy_parser.ANSWER, [3] * 99, [4, 9, 20])))
    brief = [
        (body["type"].removeprefix("response."), body.get("output_index"), _brief(body))
        for body in shown
    ]
    assert brief == [
        ("created", None, ""),
        ("in_progress", None, ""),
        ("output_item.added", 0, f"rs_{REST}"),
        ("content_part.added", 0, ""),
        ("reasoning_text.delta", 0, "I think 天気."),
        ("reasoning_text.done", 0, "I think 天気."),
        ("content_part.done", 0, "I think 天気."),
        ("output_item.done", 0, f"rs_{REST}"),
        ("output_item.added", 1, f"msg_{REST}_1"),
        ("content_part.added", 1, ""),
        ("output_text.delta", 1, "Let me < see."),
        ("output_text.done", 1, "Let me < see."),
        ("content_part.done", 1, "Let me < see."),
        ("output_item.done", 1, f"msg_{REST}_1"),
        ("output_item.added", 2, f"fc_{REST}_2"),
        ("function_call_arguments.delta", 2, '{"city":"Zürich"}'),
        ("function_call_arguments.done", 2, '{"city":"Zürich"}'),
        ("output_item.done", 2, f"fc_{REST}_2"),
        ("output_item.added", 3, f"fc_{REST}_3"),
        ("function_call_arguments.delta", 3, '{"city":"Łódź"}'),
        ("function_call_arguments.done", 3, '{"city":"Łódź"}'),
        ("output_item.done", 3, f"fc_{REST}_3"),
        ("output_item.added", 4, f"msg_{REST}_4"),
        ("content_part.added", 4, ""),
        ("output_text.delta", 4, "So."),
        ("output_text.done", 4, "So."),
        ("content_part.done", 4, "So."),
        ("output_item.done", 4, f"msg_{REST}_4"),
        ("completed", None, ""),
    ]
    calls = [b["item"] for b in shown if b.get("item", {}).get("type") == "function_call"]
    assert [call["call_id"] for call in calls[::2]] == [ids.call_id(RID, 0), ids.call_id(RID, 1)]
    assert {call["name"] for call in calls} == {"weather"}


def test_reasoning_is_its_summary_if_the_client_requests_one() -> None:
    """By the same number of events: a stream that began on a version that showed it as content can
    be resumed."""
    log = log_of("<rI think.<mA", [3] * 9)
    shown, summarized = series_of(log), series_of(log, SUMMARY)
    assert len(shown) == len(summarized)
    brief = [
        (body["type"].removeprefix("response."), body.get("summary_index"), _brief(body))
        for body in joined(summarized)
    ]
    reasoning = f"rs_{REST}"
    assert brief[2:8] == [
        ("output_item.added", None, reasoning),
        ("reasoning_summary_part.added", 0, ""),
        ("reasoning_summary_text.delta", 0, "I think."),
        ("reasoning_summary_text.done", 0, "I think."),
        ("reasoning_summary_part.done", 0, "I think."),
        ("output_item.done", None, reasoning),
    ]
    final = summarized[-1].response
    assert final is not None
    thought = {"type": "summary_text", "text": "I think."}
    assert final["output"][0]["summary"] == [thought]
    assert final["output"][0]["content"] == []
    assert final["output"][1]["content"][0]["text"] == "A"


def test_the_judges_outcome_has_the_events_of_a_summary() -> None:
    log = log_of("<rI think.<mA", [3] * 9)
    first = log[0]
    assert isinstance(first, records.Claim)
    log[0] = msgspec.structs.replace(first, echo=SUMMARY)
    entries = [history.Entry(offset, 0, record) for offset, record in enumerate(log)]
    judged = outcome.outcome_of(history.Response(RID, 5, entries), reference_fold.account(entries))
    assert judged.events == tuple((e.type, e.delta) for e in series_of(log, SUMMARY))


def test_golden_transcript_of_an_answer_with_items() -> None:
    """Byte for byte: a client that resumes on another version of this product must get the same
    events."""
    reasoning, message, call = f"rs_{REST}", f"msg_{REST}_1", f"fc_{REST}_2"
    in_reasoning = f'"item_id":"{reasoning}","output_index":0,"content_index":0'
    in_message = f'"item_id":"{message}","output_index":1,"content_index":0'
    in_call = f'"item_id":"{call}","output_index":2'
    thought = '{"type":"reasoning_text","text":"I "}'
    part = '{"type":"output_text","text":"A","annotations":[],"logprobs":[]}'
    named = '"call_id":"call_d1461b08d103ab613346fd3a","name":"f"'

    def item(id_: str, kind: str, status: str, rest: str) -> str:
        return f'"item":{{"id":"{id_}","type":"{kind}","status":"{status}",{rest}}}'

    open_, done = "in_progress", "completed"
    golden = [
        (
            "output_item.added",
            '"output_index":0,' + item(reasoning, "reasoning", open_, '"summary":[],"content":[]'),
        ),
        ("content_part.added", f'{in_reasoning},"part":{{"type":"reasoning_text","text":""}}'),
        ("reasoning_text.delta", f'{in_reasoning},"delta":"I "'),
        ("reasoning_text.done", f'{in_reasoning},"text":"I "'),
        ("content_part.done", f'{in_reasoning},"part":{thought}'),
        (
            "output_item.done",
            '"output_index":0,'
            + item(reasoning, "reasoning", done, f'"summary":[],"content":[{thought}]'),
        ),
        (
            "output_item.added",
            '"output_index":1,'
            + item(message, "message", open_, '"role":"assistant","content":[]'),
        ),
        ("content_part.added", f'{in_message},"part":{part.replace("A", "", 1)}'),
        ("output_text.delta", f'{in_message},"delta":"A","logprobs":[]'),
        ("output_text.done", f'{in_message},"text":"A","logprobs":[]'),
        ("content_part.done", f'{in_message},"part":{part}'),
        (
            "output_item.done",
            '"output_index":1,'
            + item(message, "message", done, f'"role":"assistant","content":[{part}]'),
        ),
        (
            "output_item.added",
            '"output_index":2,' + item(call, "function_call", open_, f'{named},"arguments":""'),
        ),
        ("function_call_arguments.delta", f'{in_call},"delta":"{{}}"'),
        ("function_call_arguments.done", f'{in_call},"arguments":"{{}}"'),
        (
            "output_item.done",
            '"output_index":2,' + item(call, "function_call", done, f'{named},"arguments":"{{}}"'),
        ),
    ]
    shown = series_of(log_of("<rI <mA<cf|{}<e", [99]))[2:-1]
    assert [event.body.decode() for event in shown] == [
        f'{{"type":"response.{kind}","sequence_number":{number},{rest}}}'
        for number, (kind, rest) in enumerate(golden, 2)
    ]


def test_a_cancelled_response_counts_its_reasoning() -> None:
    """By the marks, because no END says it: the id that ends a marker belongs to what it begins."""
    state = fold.Fold()
    for offset, record in enumerate(log_of("Hi<rI see.<mSo", [3] * 9)[:-1]):
        state.apply(record, offset)
    ended = state.apply(records.Cancel(RID, OWNER), 99)
    assert isinstance(ended, fold.Ended)
    assert ended.usage == records.Usage(9, 14, reasoning_tokens=8)


def _brief(body: dict[str, Any]) -> str:
    if "item" in body:
        return str(body["item"]["id"])
    part = body.get("part") or {}
    return str(
        body.get("delta") or body.get("text") or body.get("arguments") or part.get("text", "")
    )


@pytest.mark.parametrize("reason", ["length", "failed"])
def test_only_the_item_that_was_cut_short_is_incomplete(reason: str) -> None:
    final = series_of(log_of('Hi<cf|{}<e<cf|{"a', [1] * 99, (), reason))[-1].response
    assert final is not None
    assert [item["status"] for item in final["output"]] == ["completed", "completed", "incomplete"]


def test_the_object_shows_the_open_item_while_it_runs() -> None:
    series, state = events.Series(ECHO), fold.Fold()
    for offset, record in enumerate(log_of('Hi<cf|{"a":1}<e', [1] * 99)[:-3]):
        effect = state.apply(record, offset)
        assert not isinstance(effect, fold.Ignored)
        series.apply(effect)
    assert [(o["type"], o["status"]) for o in series.snapshot()["output"]] == [
        ("message", "completed"),
        ("function_call", "in_progress"),
    ]


def test_ids_without_a_character_open_nothing_where_items_are_parsed() -> None:
    """Else an empty message would stand before every call."""
    shown = series_of(log_of("<cf|{}<e", [1] * 99))
    final = shown[-1].response
    assert final is not None
    assert [item["type"] for item in final["output"]] == ["function_call"]
    assert final["output"][0]["id"] == f"fc_{REST}"


def test_an_item_may_begin_in_the_end() -> None:
    """What the parser held back is text only when nothing follows; a call may have no arguments."""
    log = log_of("Hi<cf|{}<e<", [1] * 99)
    assert [m.kind for m in log[-1].marks] == ["m"]  # type: ignore[union-attr]
    final = series_of(log)[-1].response
    assert final is not None
    assert [_text(item) for item in final["output"]] == ["Hi", "{}", "<"]
    call = records.Mark(0, 0, "c", "f", ids.call_id(RID, 1))
    last = log[-1]
    assert isinstance(last, records.End)
    log[-1] = msgspec.structs.replace(last, text_tail="", marks=(call,))
    final = series_of(log)[-1].response
    assert final is not None
    assert [_text(item) for item in final["output"]] == ["Hi", "{}", ""]
    assert [tuple(m) for m in accounted(log).marks][1:] == [(4, 11, "c", "f", call.call_id)]


def test_a_custom_tools_call_has_its_own_events() -> None:
    mark = records.Mark(0, 0, "x", "shell", ids.call_id(RID, 0))
    effects: list[fold.Effect] = [
        fold.Claimed(claim("n", None), 1),
        fold.Accepted(0, [1, 2], "ls", (mark,)),
        fold.Ended("stop", "completed", " -l", records.Usage(), None, 0),
    ]
    series = events.Series(ECHO)
    shown = series.open() + [e for effect in effects for e in series.apply(effect)]
    for event in shown:
        assert _stream_event.validate_json(event.body, strict=True).type == event.type
    assert [e.type.removeprefix("response.") for e in shown[2:-1]] == [
        "output_item.added",
        *["custom_tool_call_input.delta"] * 2,
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    final = shown[-1].response
    assert final is not None
    assert final["output"] == [
        {
            "id": f"ctc_{REST}",
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": mark.call_id,
            "name": "shell",
            "input": "ls -l",
        }
    ]


NO_TOOLS: list[Any] = [None, 7, [None, {}]]
ODD: list[Any] = [None, 7, *({"type": "namespace", "name": "mail", "tools": x} for x in NO_TOOLS)]


@pytest.mark.parametrize("tools", [[], ODD])
def test_a_tool_of_a_namespace_is_called_by_its_own_name(tools: Sequence[Any]) -> None:
    """The model knows it by its flat name. The echo is of a record, so it may hold anything."""
    space = {
        "type": "namespace",
        "name": "mail",
        "tools": [{"type": "function", "name": "send"}, {"type": "custom", "name": "grep"}],
    }
    base = {**ECHO, "tools": [*tools, {"type": "function", "name": "send"}, space]}
    series = events.Series(base)
    series.apply(fold.Claimed(claim("n", None), 1))
    names = ["mail__send", "send", "mail__grep"]
    marks = tuple(
        records.Mark(0, 0, kind, name, ids.call_id(RID, n))  # type: ignore[arg-type]
        for n, (kind, name) in enumerate(zip("ccx", names, strict=True))
    )
    for event in series.apply(fold.Accepted(0, [1], "{}", marks)):
        assert _stream_event.validate_json(event.body, strict=True).type == event.type
    calls = series.snapshot()["output"]
    assert [(call["name"], call.get("namespace")) for call in calls] == [
        ("send", "mail"),
        ("send", None),
        ("grep", "mail"),
    ]


def test_log_probabilities_are_shown_with_the_message_they_belong_to() -> None:
    """Half a character has its bytes, a token without text is not shown, and reasoning shows
    none."""
    half = "天".encode()
    lp = (
        records.lp(b"", -0.5),
        records.lp(b"I", -1.0),
        records.lp(b"", -0.5),
        records.lp(half[:1], -2.0, [records.likely(b"x", float("-inf"))]),
        records.lp(half[1:], -0.1234567),
        records.lp(b"", -0.5),
    )
    marks = (records.Mark(0, 0, "r"), records.Mark(1, 3, "m"))
    effect = fold.Accepted(0, [1, 2, 3, 4, 5, 6], "I天", marks, lp)
    series = events.Series(ECHO)
    series.apply(fold.Claimed(claim("n", None), 1))
    deltas = [json.loads(e.body) for e in series.apply(effect) if e.delta is not None]
    likely = {"token": "x", "logprob": records.LEAST_LOGPROB, "bytes": [120]}
    entries = [
        {"token": "�", "logprob": -2.0, "bytes": [229], "top_logprobs": [likely]},
        {"token": "��", "logprob": -0.123457, "bytes": [164, 169], "top_logprobs": []},
    ]
    assert "logprobs" not in deltas[0]
    assert deltas[1]["logprobs"] == entries
    series.apply(fold.Ended("stop", "completed", "", records.Usage(), None, 0))
    shown = json.loads(msgspec.json.encode(series.snapshot()))
    assert shown["output"][1]["content"][0]["logprobs"] == entries


def test_log_probabilities_before_the_first_character_belong_to_the_message_it_opens() -> None:
    half = "天".encode()
    series = events.Series(ECHO)
    series.apply(fold.Claimed(claim("n", None), 1))
    assert series.apply(fold.Accepted(0, [1], "", (), (records.lp(half[:1], -1.0),))) == []
    shown = series.apply(fold.Accepted(1, [2], "天", (), (records.lp(half[1:], -2.0),)))
    assert [e["logprob"] for e in json.loads(shown[-1].body)["logprobs"]] == [-1.0, -2.0]


marks_ = st.builds(
    records.Mark,
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["m", "r", "c", "x"]),
    st.text(max_size=2),
    st.text(max_size=2),
)


@given(st.text(max_size=6), st.lists(marks_, max_size=4), st.integers(0, 5))
def test_marks_in_the_wrong_place_lose_and_double_nothing(
    text: str, marks: list[records.Mark], count: int
) -> None:
    found = items.pieces(text, marks, count)
    assert "".join(piece.text for piece in found) == text
    assert sum(piece.ids for piece in found) == count
    assert [piece.mark for piece in found] == [None, *marks]
    assert all(piece.ids >= 0 for piece in found)


def test_ids_parsed_two_at_once_are_another_answer() -> None:
    """Why a takeover replays one by one: it would continue something else."""
    one, two = (accounted(log_of(toy_parser.ANSWER, [4] * 99, step=step)) for step in (1, 2))
    assert one.ids == two.ids
    assert one.text != two.text


def test_a_call_id_is_a_function_of_the_response_and_the_ordinal() -> None:
    assert len({ids.call_id(rid, n) for rid in (RID, RID + "x") for n in range(20)}) == 40
    assert ids.call_id("resp_a", 0) == "call_e85960e8872926ef8c06480f"


def in_grammar(shown: Iterable[dict[str, Any]]) -> bool:
    """Whether the protocol allows these events, up to an end."""
    grammar = response_grammar.Grammar()
    try:
        for body in shown:
            grammar.take(body)
    except response_grammar.Violation:
        return False
    return grammar.ended


@given(answers, divisions, takeovers_, st.booleans(), st.sampled_from(["stop", "length", "failed"]))
def test_all_events_are_in_the_protocols_grammar_and_of_its_types(
    answer: str, sizes: list[int], takeovers: list[int], logprobs: bool, reason: str
) -> None:
    log = log_of(answer, sizes, takeovers, reason, logprobs=logprobs)
    shown = [json.loads(event.body) for event in series_of(log)]
    assert in_grammar(shown)
    for body in shown:
        assert strict_types.complaints(sdk.ResponseStreamEvent, body) == []


def test_the_grammar_takes_no_series_that_was_tampered_with() -> None:
    shown = [json.loads(event.body) for event in series_of(log_of(toy_parser.ANSWER, [3] * 99))]
    assert in_grammar(shown)

    def numbered(bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**body, "sequence_number": i} for i, body in enumerate(bodies)]

    for i, body in enumerate(shown):
        if body["type"] not in ("response.created",):
            assert not in_grammar(shown[:i] + shown[i + 1 :]), body
        if body["type"] != "response.in_progress":  # nothing but its place says that it is needed
            assert not in_grammar(numbered(shown[:i] + shown[i + 1 :])), body
        assert not in_grammar(numbered([*shown[: i + 1], *shown[i:]])), body
        if i and shown[i - 1]["type"] != body["type"]:
            swapped = [*shown[: i - 1], body, shown[i - 1], *shown[i + 1 :]]
            assert not in_grammar(numbered(swapped)), body
        for member in ("item_id", "output_index", "content_index", "delta", "text", "arguments"):
            if member in body:
                wrong = {**body, member: 77 if isinstance(body[member], int) else "no"}
                assert not in_grammar([*shown[:i], wrong, *shown[i + 1 :]]), wrong
