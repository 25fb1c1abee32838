"""What readers show of a search in files: the call and the citations, by echo and text alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai import Omit
from openai.lib.streaming.responses import ResponseStreamState
from openai.types import responses as sdk
from pydantic import TypeAdapter

from tailrace.protocol import events, file_search, fold, ids, records
from tailrace.verify import history, outcome, reference_fold
from tests.support import cases, strict_types, toy_parser
from tests.unit.tailrace.protocol import test_items

RID = test_items.RID
FS, MSG = ids.item_id(RID, "fs_"), ids.item_id(RID, "msg_", 1)
SOURCES = (("file-a", "a.md"), ("file-b", "b.md"), ("file-a", "a.md"))
RESULT = {"file_id": "file-a", "filename": "a.md", "score": 0.5, "text": "T", "attributes": {}}
_stream_event: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)


def echo(results: list[dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    search: dict[str, Any] = {
        "queries": ["why?"],
        "sources": [list(each) for each in SOURCES],
        "characters": 9,
    }
    if results is not None:
        search["results"] = results
    return {**events.echo(RID, 1_700_000_000, "m"), file_search.MEMBER: search, **more}


def shown(log: Iterable[records.TokenRecord], said: dict[str, Any]) -> list[events.Event]:
    state, series = fold.Fold(), events.Series(said)
    found = series.open()
    for offset, record in enumerate(log):
        effect = state.apply(record, offset, 1_700_000_003_000)
        assert not isinstance(effect, fold.Ignored)
        found += series.apply(effect)
    assert [e.sequence_number for e in found] == list(range(len(found)))
    return found


def answered(answer: str, sizes: Iterable[int] = (), takeovers: Iterable[int] = ()) -> Any:
    return shown(test_items.log_of(answer, [*sizes], [*takeovers]), echo())


def cited(final: dict[str, Any] | None) -> list[list[tuple[str, int]]]:
    assert final is not None
    return [
        [(a["file_id"], a["index"]) for a in item["content"][0]["annotations"]]
        for item in final["output"]
        if item["type"] == "message"
    ]


PIECES = ["<m", "<r", '<cf|{"a":"[1]"}<e', "[1]", "[2]", "[3]", "[4]", "[0]", "[01]", "[", "]", "1"]
PIECES += ["[1", "2]", "é[2]", "天 ", "x"]
FEW = settings(max_examples=40)
answers = st.lists(st.sampled_from(PIECES), min_size=1, max_size=10).map("".join)


@FEW
@given(answers, test_items.divisions, test_items.takeovers_)
@example("[1", [1, 1, 1], [2])
@example("x[1]y[3] [12]", [1] * 20, [3, 5])
def test_however_it_is_cut_the_citations_are_those_of_the_text(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    whole, cut = answered(answer), answered(answer, sizes, takeovers)
    assert [e.body for e in cut] == [e.body for e in answered(answer, sizes)]
    assert cut[-1].response is not None
    assert json.dumps(cut[-1].response["output"], default=bytes.hex) == json.dumps(
        whole[-1].response["output"], default=bytes.hex
    )
    for item, found in zip(
        [i for i in cut[-1].response["output"] if i["type"] == "message"],
        cited(cut[-1].response),
        strict=True,
    ):
        text = item["content"][0]["text"]
        markers = {f"[{n}]": source for n, (source, _) in enumerate(SOURCES, 1)}
        expected = [
            (markers[text[i : i + 3]], i) for i in range(len(text)) if text[i : i + 3] in markers
        ]
        assert found == expected
    told = [json.loads(e.body) for e in cut if e.type == "response.output_text.annotation.added"]
    assert [e["annotation"] for e in told] == [
        each
        for item in cut[-1].response["output"]
        if item["type"] == "message"
        for each in item["content"][0]["annotations"]
    ]


@FEW
@given(answers, test_items.divisions, test_items.takeovers_)
@example("[1<m] x", [], [])  # no marker lies in two items
@example("[1<r]<m1]", [2], [])
def test_the_judge_derives_the_same_events(
    answer: str, sizes: list[int], takeovers: list[int]
) -> None:
    log = test_items.log_of(answer, sizes, takeovers)
    judged = outcome.events(test_items.accounted(log), background=False, source_count=len(SOURCES))
    assert [(kind, delta) for kind, delta, _ in judged] == [
        (e.type, e.delta) for e in shown(log, echo())
    ]


def test_the_judges_outcome_has_the_call_and_all_events() -> None:
    log = test_items.log_of("So [1].", [2] * 9)
    claim = log[0]
    assert isinstance(claim, records.Claim)
    log[0] = msgspec.structs.replace(claim, echo=echo())
    entries = [history.Entry(offset, 0, record) for offset, record in enumerate(log)]
    judged = outcome.outcome_of(history.Response(RID, 5, entries), reference_fold.account(entries))
    assert judged.items == (("file_search_call", "", "", ""), ("message", "", "", "So [1]."))
    assert judged.events == tuple((e.type, e.delta) for e in shown(log, echo()))


@settings(max_examples=10)
@given(answers, test_items.divisions)
def test_the_official_clients_types_take_every_event(answer: str, sizes: list[int]) -> None:
    state = ResponseStreamState(input_tools=[], text_format=Omit())
    told: list[Any] = []
    for event in shown(test_items.log_of(answer, sizes), echo([RESULT])):
        parsed = _stream_event.validate_json(event.body, strict=True)
        assert parsed.type == event.type
        kind = type(parsed)
        assert strict_types.complaints(kind, json.loads(event.body)) == []
        told += state.handle_event(parsed)
    assert told[-1].type == "response.completed"
    final = told[-1].response
    call = final.output[0]
    assert isinstance(call, sdk.ResponseFileSearchToolCall)
    assert (call.id, call.queries, call.status) == (FS, ["why?"], "completed")
    assert call.results is not None
    assert (call.results[0].filename, call.results[0].text) == ("a.md", "T")


def test_golden_transcript_of_a_search_and_a_citation() -> None:
    """Byte for byte: a client that resumes on another version of this product must get the same
    events."""
    begun = (
        f'"item":{{"id":"{FS}","type":"file_search_call","status":"in_progress","queries":[],'
        '"results":null}'
    )
    done = begun.replace("in_progress", "completed").replace("[]", '["why?"]')
    call = f'"output_index":0,"item_id":"{FS}"'
    place = f'"item_id":"{MSG}","output_index":1,"content_index":0'
    second = '{"type":"file_citation","index":2,"file_id":"file-b","filename":"b.md"}'
    golden = [
        ("output_item.added", f'"output_index":0,{begun}'),
        ("file_search_call.in_progress", call),
        ("file_search_call.searching", call),
        ("file_search_call.completed", call),
        ("output_item.done", f'"output_index":0,{done}'),
        (
            "output_item.added",
            f'"output_index":1,"item":{{"id":"{MSG}","type":"message","status":"in_progress",'
            '"role":"assistant","content":[]}',
        ),
        (
            "content_part.added",
            f'{place},"part":{{"type":"output_text","text":"","annotations":[],"logprobs":[]}}',
        ),
        ("output_text.delta", f'{place},"delta":"So[","logprobs":[]'),
        ("output_text.delta", f'{place},"delta":"2].","logprobs":[]'),
        (
            "output_text.annotation.added",
            f'{place},"annotation_index":0,"annotation":{second}',
        ),
    ]
    found = answered("So[2].", [3, 3])[2:12]
    assert [event.body.decode() for event in found] == [
        f'{{"type":"response.{kind}","sequence_number":{number},{rest}}}'
        for number, (kind, rest) in enumerate(golden, 2)
    ]


def test_the_call_is_shown_from_the_first_claim_on_and_the_echo_never() -> None:
    series, state = events.Series(echo()), fold.Fold()
    opened = series.open()
    assert series.snapshot()["output"] == []
    effect = state.apply(test_items.claim("n0", None), 0)
    assert isinstance(effect, fold.Claimed)
    told = opened + series.apply(effect)
    assert [item["type"] for item in series.snapshot()["output"]] == ["file_search_call"]
    assert series.snapshot()["output"][0]["results"] is None
    assert b'"_search"' not in b"".join(e.body for e in told)
    assert file_search.MEMBER not in series.snapshot()
    # Another model takes it over: the call stays where it is.
    again = series.apply(fold.Claimed(effect.claim, 2, served="small"))
    assert [e.type for e in again] == ["response.in_progress"]
    assert json.loads(again[0].body)["response"]["output"] == [series.snapshot()["output"][0]]


def test_another_model_that_continues_has_the_next_item() -> None:
    series = events.Series(echo())
    first = fold.Claimed(test_items.claim("n0", None, ""), 1)
    more = fold.Claimed(test_items.claim("n1", "n0", ""), 2, "small", "rev-2", continues=True)
    told = [
        event
        for effect in (first, fold.Accepted(0, [1], "A [1"), more, fold.Accepted(1, [2], "] [2]"))
        for event in series.apply(effect)
    ]
    found = series.snapshot()
    assert found["fallback"]["items"][1] == {"output_index": 2, "model": "small"}
    assert cited(found) == [[], [("file-b", 2)]]  # a marker lies in one item
    assert told[-1].type == "response.output_text.annotation.added"


@cases.each("member", [None, 5, [], {}, {"queries": "x"}, {"queries": [], "sources": [1]}], ids=str)
def test_what_cannot_be_read_is_as_no_search(member: Any) -> None:
    said = {**events.echo(RID, 1_700_000_000, "m"), file_search.MEMBER: member}
    log = test_items.log_of("So [1].", [99])
    plain = [e.body for e in shown(log, test_items.ECHO)]
    assert [e.body for e in shown(log, said)] == plain


def test_citations_are_bounded() -> None:
    found = file_search.Citations([file_search.Source("f", "n")])
    for _ in range(file_search.MAX_CITATIONS):
        found.add("[1][1]")
    assert len(found.annotations) == file_search.MAX_CITATIONS
    text = "[1]" * (file_search.MAX_CITATIONS + 5)
    judged = outcome.events(
        test_items.accounted(test_items.log_of(text, [5000])), background=False, source_count=3
    )
    told = [kind for kind, *_ in judged if kind.endswith("annotation.added")]
    assert len(told) == file_search.MAX_CITATIONS


IMAGE = {"type": "image", "sha256": "0", "media": "image/png"}
TEXT = {"type": "text", "text": "Look."}


@cases.each(
    "messages",
    [
        [{"role": "user", "content": "why?"}],
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": [TEXT, IMAGE]}],
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "assistant", "content": "d"},
        ],
    ],
)
def test_passages_go_and_leave_the_dialogue_as_it_was(messages: list[dict[str, Any]]) -> None:
    before = json.dumps(messages)
    found = file_search.with_passages(messages, "\n\n[1] é")
    assert found != messages
    assert json.dumps(messages) == before
    search = file_search.Search(("q",), (file_search.Source("f", "n"),), len("\n\n[1] é"))
    said = {file_search.MEMBER: msgspec.to_builtins(search)}
    assert file_search.without_passages(found, said) == messages
    assert file_search.without_passages(found, {}) == found


def test_the_toy_answers_have_citations_at_all() -> None:
    """Else the properties above would say nothing."""
    found = answered(toy_parser.ANSWER + "<m[1] and [2]", [2] * 99)
    assert cited(found[-1].response)[-1] == [("file-a", 0), ("file-b", 8)]
