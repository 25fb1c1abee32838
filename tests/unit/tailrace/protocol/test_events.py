"""Events: what a client receives is a function of the log alone, in the documented order, and of
the shapes the official client declares."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import responses as sdk
from pydantic import BaseModel, TypeAdapter

from tailrace.protocol import events, fold, queue_place, records
from tests.support import cases, response_grammar

RID = "resp_AQECAwQABQAAAAAABgABAgMEBQYHCAkK"
ITEM = "msg_AQECAwQABQAAAAAABgABAgMEBQYHCAkK"
OWNER = records.Owner("i", "s")
CLAIM = records.Claim(RID, "n1", None, OWNER, "w1", "t", 0, "rev", "tok", 9)
USAGE = records.Usage(9, 2, 4)
FIRST = fold.Claimed(CLAIM, 1)
TAKEOVER = fold.Claimed(CLAIM, 2)
CONTINUED = fold.Claimed(CLAIM, 2, "small", "rev-2", continues=True)

_stream_event: TypeAdapter[Any] = TypeAdapter(sdk.ResponseStreamEvent)
_server_event: TypeAdapter[Any] = TypeAdapter(sdk.ResponsesServerEvent)


def echo(background: bool = False) -> dict[str, Any]:
    return events.echo(
        RID,
        1_700_000_000,
        "m",
        background=background,
        metadata={"k": "v"},
        instructions="Be kind.",
        max_output_tokens=20,
    )


def ended(reason: str, tail: str = "", error: tuple[str, str] | None = None) -> fold.Ended:
    status = "cancelled" if reason == "cancelled" else fold.STATUS_OF_REASON[reason]
    return fold.Ended(reason, status, tail, USAGE, error, 1_700_000_003_999)


def text(*frames: str) -> list[fold.Effect]:
    return [fold.Accepted(seq, [seq], frame) for seq, frame in enumerate(frames)]


def run(effects: Iterable[fold.Effect], background: bool = False) -> list[events.Event]:
    series = events.Series(echo(background))
    return series.open() + [event for effect in effects for event in series.apply(effect)]


def kinds(series: Sequence[events.Event]) -> list[str]:
    return [event.type.removeprefix("response.") for event in series]


def bodies(series: Iterable[events.Event]) -> list[dict[str, Any]]:
    return [json.loads(event.body) for event in series]


ITEM_OPENED = ["output_item.added", "content_part.added"]
ITEM_CLOSED = ["output_text.done", "content_part.done", "output_item.done"]
PLAIN: list[fold.Effect] = [FIRST, *text("Hel", "lo"), ended("stop", "!")]

# Every way a response can go, as the fold's effects, and the event types it must show.
WAYS: dict[str, tuple[list[fold.Effect], list[str]]] = {
    "completed": (
        PLAIN,
        [
            "created",
            "in_progress",
            *ITEM_OPENED,
            *["output_text.delta"] * 3,
            *ITEM_CLOSED,
            "completed",
        ],
    ),
    "token limit": (
        [FIRST, *text("Hel"), ended("length")],
        ["created", "in_progress", *ITEM_OPENED, "output_text.delta", *ITEM_CLOSED, "incomplete"],
    ),
    "taken over": (
        [
            FIRST,
            *text("Hel"),
            TAKEOVER,
            fold.Accepted(1, [1], "lo"),
            fold.Yielded("n1"),
            ended("stop"),
        ],
        [
            "created",
            "in_progress",
            *ITEM_OPENED,
            *["output_text.delta"] * 2,
            *ITEM_CLOSED,
            "completed",
        ],
    ),
    "cancelled before a claim": ([ended("cancelled")], ["created", "incomplete"]),
    "cancelled after the claim": (
        [FIRST, ended("cancelled")],
        ["created", "in_progress", "incomplete"],
    ),
    "cancelled in mid-text": (
        [FIRST, *text("Hel"), ended("cancelled")],
        ["created", "in_progress", *ITEM_OPENED, "output_text.delta", *ITEM_CLOSED, "incomplete"],
    ),
    "failed at once": (
        [FIRST, ended("failed", error=("server_error", "Engine died."))],
        ["created", "in_progress", "failed"],
    ),
    "failed in mid-text": (
        [FIRST, *text("Hel"), ended("failed")],
        ["created", "in_progress", *ITEM_OPENED, "output_text.delta", *ITEM_CLOSED, "failed"],
    ),
    "expired": ([FIRST, ended("expired")], ["created", "in_progress", "failed"]),
    "empty answer": (
        [FIRST, ended("stop")],
        ["created", "in_progress", *ITEM_OPENED, *ITEM_CLOSED, "completed"],
    ),
    "tokens without text": (
        [FIRST, *text("", ""), ended("stop")],
        ["created", "in_progress", *ITEM_OPENED, *ITEM_CLOSED, "completed"],
    ),
    "all text withheld until the end": (
        [FIRST, *text("", ""), ended("stop", "Hello")],
        ["created", "in_progress", *ITEM_OPENED, "output_text.delta", *ITEM_CLOSED, "completed"],
    ),
    "warm-up": ([FIRST, ended("warmup")], ["created", "in_progress", "completed"]),
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_each_way_of_a_response_shows_its_events_in_order_with_dense_numbers(way: str) -> None:
    effects, expected = WAYS[way]
    series = run(effects)
    assert kinds(series) == expected
    assert [event.sequence_number for event in series] == list(range(len(series)))
    assert [body["sequence_number"] for body in bodies(series)] == list(range(len(series)))
    assert [body["type"] for body in bodies(series)] == [event.type for event in series]


@ways
def test_only_the_last_event_is_terminal(way: str) -> None:
    assert [event.terminal for event in run(WAYS[way][0])][-2:] == [False, True]
    assert sum(event.terminal for event in run(WAYS[way][0])) == 1


@ways
def test_a_background_response_is_queued_first_and_else_the_same(way: str) -> None:
    foreground, background = run(WAYS[way][0]), run(WAYS[way][0], background=True)
    assert kinds(background) == ["created", "queued", *kinds(foreground)[1:]]
    assert [body["response"]["status"] for body in bodies(background[:2])] == ["queued", "queued"]
    assert bodies(foreground)[0]["response"]["status"] == "in_progress"
    assert all(event.response["background"] for event in background if event.response is not None)


# Fields of the Open Responses specification and of the service that the client's types do not
# declare; they pass as extras.
UNDECLARED = {"presence_penalty", "frequency_penalty", "store"}


def undeclared(value: object) -> set[str]:
    if isinstance(value, BaseModel):
        inner = (
            set().union(*(undeclared(field) for field in value.__dict__.values()))
            if value.__dict__
            else set()
        )
        return inner | set(value.model_extra or {})
    if isinstance(value, list):
        return set().union(*map(undeclared, value)) if value else set()
    return set()


# Types that OpenAI's API does not have, marked **extension** in docs/protocol.md, section 4.
EXTENSIONS: frozenset[str] = frozenset()


def test_types_of_ours_cannot_collide_with_types_of_the_api() -> None:
    assert all(kind.startswith("tailrace.") for kind in EXTENSIONS)


@ways
@pytest.mark.parametrize("background", [False, True])
def test_the_official_clients_types_accept_every_event_strictly(way: str, background: bool) -> None:
    for event in run(WAYS[way][0], background):
        if event.type in EXTENSIONS:
            continue
        parsed = _stream_event.validate_json(event.body, strict=True)
        assert parsed.type == event.type
        assert type(parsed).__name__ != "dict"
        assert undeclared(parsed) <= UNDECLARED
        _server_event.validate_json(event.on_lane("main"), strict=True)


@ways
def test_the_official_clients_type_accepts_the_response_object_at_every_moment(way: str) -> None:
    series = events.Series(echo())
    series.open()
    for effect in [None, *WAYS[way][0]]:
        if effect is not None:
            series.apply(effect)
        parsed = sdk.Response.model_validate_json(json.dumps(series.snapshot()), strict=True)
        assert parsed.output_text == series.text


# Present although perhaps null, in every Response object: what stricter clients than OpenAI's
# require.
REQUIRED = {
    *(
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "error",
        "model",
        "previous_response_id",
        "instructions",
    ),
    *(
        "output",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    ),
    *(
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
    ),
    *("metadata", "safety_identifier", "prompt_cache_key", "user"),
}


@ways
def test_the_response_object_has_the_whole_set_of_fields_and_whole_numbers_where_they_must_be(
    way: str,
) -> None:
    for event in run(WAYS[way][0]):
        if event.response is None:
            continue
        assert set(event.response) == REQUIRED
        assert json.loads(event.body)["response"] == event.response
        assert type(event.response["created_at"]) is int
        assert type(event.response["completed_at"]) is (
            int if event.response["status"] == "completed" else type(None)
        )
        assert isinstance(event.response["service_tier"], str)


STATUS = {
    "completed": ("completed", None, None),
    "token limit": ("incomplete", "max_output_tokens", None),
    "cancelled before a claim": ("cancelled", None, None),
    "cancelled in mid-text": ("cancelled", None, None),
    "failed at once": ("failed", None, "server_error"),
    "failed in mid-text": ("failed", None, "server_error"),
    "expired": ("failed", None, "server_error"),
    "warm-up": ("completed", None, None),
}


@cases.each("way", STATUS)
def test_the_terminal_response_says_how_it_ended(way: str) -> None:
    final = run(WAYS[way][0])[-1].response
    assert final is not None
    status, incomplete, code = STATUS[way]
    assert final["status"] == status
    assert (final["incomplete_details"] or {}).get("reason") == incomplete
    assert (final["error"] or {}).get("code") == code
    assert final["usage"] == {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11,
    }


def test_a_failure_that_names_its_cause_is_passed_on() -> None:
    final = run(WAYS["failed at once"][0])[-1].response
    assert final is not None
    assert final["error"] == {"code": "server_error", "message": "Engine died."}


def test_a_failure_names_the_field_at_fault() -> None:
    failed = ended("failed", error=("invalid_value", "Too many."))
    final = run([dataclasses.replace(failed, param="dimensions")])[-1].response
    assert final is not None
    assert final["error"] == {
        "code": "invalid_value",
        "message": "Too many.",
        "param": "dimensions",
    }


@ways
def test_deltas_the_done_events_and_the_response_hold_the_same_text(way: str) -> None:
    series = run(WAYS[way][0])
    whole = "".join(event.delta or "" for event in series)
    final = series[-1].response
    assert final is not None
    shown = bodies(series)
    if "output_text.done" in kinds(series):
        assert (
            next(body for body in shown if body["type"] == "response.output_text.done")["text"]
            == whole
        )
        assert final["output"] == [
            next(body for body in shown if body["type"] == "response.output_item.done")["item"]
        ]
        assert final["output"][0]["content"][0]["text"] == whole
    else:
        assert (whole, final["output"]) == ("", [])


@ways
def test_the_item_of_an_answer_that_was_cut_short_is_incomplete(way: str) -> None:
    final = run(WAYS[way][0])[-1].response
    assert final is not None
    for item in final["output"]:
        assert item["status"] == ("completed" if final["status"] == "completed" else "incomplete")
        assert item["id"] == ITEM


def test_a_takeover_shows_no_reset() -> None:
    """Stock accumulators take a second in_progress, or a second item, for a new start and lose or
    double text."""
    assert run([FIRST, *text("Hel"), TAKEOVER, fold.Accepted(1, [1], "lo"), ended("stop")]) == run(
        [FIRST, *text("Hel", "lo"), ended("stop")]
    )


def test_golden_transcript_of_a_plain_response() -> None:
    """Byte for byte: a client that resumes on another version of this product must get the same
    events."""
    base = json.dumps(
        {
            "id": RID,
            "object": "response",
            "created_at": 1_700_000_000,
            "model": "m",
            "previous_response_id": None,
            "instructions": "Be kind.",
            "tools": [],
            "tool_choice": "auto",
            "truncation": "disabled",
            "parallel_tool_calls": True,
            "text": {"format": {"type": "text"}},
            "temperature": 1.0,
            "top_p": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_logprobs": 0,
            "reasoning": None,
            "max_output_tokens": 20,
            "max_tool_calls": None,
            "store": True,
            "background": False,
            "service_tier": "default",
            "metadata": {"k": "v"},
            "safety_identifier": None,
            "prompt_cache_key": None,
            "user": None,
        },
        separators=(",", ":"),
    )[:-1]
    running = (
        base
        + ',"status":"in_progress","completed_at":null,"incomplete_details":null,"error":null,'
        + '"output":[],"usage":null}'
    )
    place = f'"item_id":"{ITEM}","output_index":0,"content_index":0'
    part = '{"type":"output_text","text":"Hello!","annotations":[],"logprobs":[]}'
    item = (
        f'{{"id":"{ITEM}","type":"message","status":"completed","role":"assistant",'
        f'"content":[{part}]}}'
    )
    usage = (
        '{"input_tokens":9,"input_tokens_details":{"cached_tokens":4,"cache_write_tokens":0},'
        '"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":11}'
    )
    done = (
        base
        + ',"status":"completed","completed_at":1700000003,"incomplete_details":null,"error":null,'
        + f'"output":[{item}],"usage":{usage}}}'
    )
    empty_item = (
        f'{{"id":"{ITEM}","type":"message","status":"in_progress","role":"assistant","content":[]}}'
    )
    golden = [
        f'{{"type":"response.created","sequence_number":0,"response":{running}}}',
        f'{{"type":"response.in_progress","sequence_number":1,"response":{running}}}',
        '{"type":"response.output_item.added","sequence_number":2,"output_index":0,'
        f'"item":{empty_item}}}',
        f'{{"type":"response.content_part.added","sequence_number":3,{place},'
        '"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}}',
        f'{{"type":"response.output_text.delta","sequence_number":4,{place},'
        '"delta":"Hel","logprobs":[]}',
        f'{{"type":"response.output_text.delta","sequence_number":5,{place},'
        '"delta":"lo","logprobs":[]}',
        f'{{"type":"response.output_text.delta","sequence_number":6,{place},'
        '"delta":"!","logprobs":[]}',
        f'{{"type":"response.output_text.done","sequence_number":7,{place},'
        '"text":"Hello!","logprobs":[]}',
        f'{{"type":"response.content_part.done","sequence_number":8,{place},"part":{part}}}',
        '{"type":"response.output_item.done","sequence_number":9,"output_index":0,'
        f'"item":{item}}}',
        f'{{"type":"response.completed","sequence_number":10,"response":{done}}}',
    ]
    assert [event.body.decode() for event in run(PLAIN)] == golden


# Determinism: instances read the same records, only cut into polls differently, and start their
# series at different times.

printable = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8)
reasons = st.sampled_from(["stop", "length", "failed", "expired", "cancelled"])


@st.composite
def ways_of_a_response(draw: st.DrawFn) -> list[fold.Effect]:
    effects: list[fold.Effect] = [FIRST]
    for seq in range(draw(st.integers(0, 6))):
        effects.append(fold.Accepted(seq, [seq], draw(printable)))
        if draw(st.booleans()):
            between: list[fold.Effect] = [TAKEOVER, fold.Yielded("n1"), CONTINUED]
            effects.append(draw(st.sampled_from(between)))
    return [*effects, ended(draw(reasons), draw(printable))]


@given(ways_of_a_response(), st.lists(st.integers(0, 9)), st.booleans())
def test_two_instances_derive_the_same_bytes_however_the_records_were_cut(
    effects: list[fold.Effect], cuts: list[int], background: bool
) -> None:
    one, other = events.Series(echo(background)), events.Series(echo(background))
    seen_by_one = one.open() + [event for effect in effects for event in one.apply(effect)]
    seen_by_other = other.open()
    rest = list(effects)
    for cut in [*cuts, len(effects)]:
        batch, rest = rest[:cut], rest[cut:]
        other.snapshot()  # a GET in between must leave no trace
        seen_by_other += [event for effect in batch for event in other.apply(effect)]
    assert [event.body for event in seen_by_one] == [event.body for event in seen_by_other]
    assert one.snapshot() == other.snapshot() == seen_by_one[-1].response


@given(ways_of_a_response())
def test_any_text_reaches_the_client_unchanged(effects: list[fold.Effect]) -> None:
    written = "".join(
        e.text if isinstance(e, fold.Accepted) else e.text_tail if isinstance(e, fold.Ended) else ""
        for e in effects
    )
    series = run(effects)
    assert "".join(json.loads(event.body).get("delta", "") for event in series) == written
    for event in series:
        _check_sse(event)


def _check_sse(event: events.Event) -> None:
    frame = event.sse()
    lines = frame.split(b"\n")
    assert b"\r" not in frame  # it would end a line for an SSE parser, wherever it stands
    assert lines == [b"event: " + event.type.encode(), b"data: " + event.body, b"", b""]
    frame.decode()


SPECIAL = '\r\n\n\0\x1b[31m\u2028\u2029\x85"\\</script>\U0001f600é\ufeffdata: x\n\nevent: y'


def test_special_characters_cannot_break_the_framing() -> None:
    for event in run([FIRST, *text(SPECIAL), ended("stop", SPECIAL)]):
        _check_sse(event)
        assert json.loads(event.on_lane("main"))["type"] == event.type
    assert run([FIRST, *text(SPECIAL)])[-1].delta == SPECIAL


def test_a_lane_is_named_in_front_and_the_default_lane_is_not() -> None:
    for event in run(PLAIN):
        assert event.on_lane(None) is event.body
        on_lane = json.loads(event.on_lane('a"b'))
        assert on_lane.pop("stream_id") == 'a"b'
        assert on_lane == json.loads(event.body)
        assert event.on_lane("main").startswith(b'{"stream_id":"main","type":')


def test_deltas_carry_no_response_and_lifecycle_events_do() -> None:
    for event in run(PLAIN):
        lifecycle = event.type in ("response.created", "response.in_progress", "response.completed")
        assert (event.response is not None) == lifecycle
        assert (event.delta is not None) == (event.type == "response.output_text.delta")


def test_the_snapshot_follows_the_response() -> None:
    series = events.Series(echo(background=True))
    series.open()
    assert (series.snapshot()["status"], series.snapshot()["output"]) == ("queued", [])
    series.apply(FIRST)
    assert (series.snapshot()["status"], series.snapshot()["output"]) == ("in_progress", [])
    series.apply(fold.Accepted(0, [1], "Hel"))
    assert series.snapshot()["output"][0]["content"][0]["text"] == "Hel"
    assert series.snapshot()["output"][0]["status"] == "in_progress"
    series.apply(ended("stop", "lo"))
    assert series.snapshot()["status"] == "completed"


def test_an_unclaimed_foreground_response_is_in_progress_for_its_client() -> None:
    """A client that asked and waits knows no queue; only background responses show one."""
    series = events.Series(echo())
    assert series.snapshot()["status"] == "in_progress"


def test_the_echo_is_never_changed() -> None:
    base = echo()
    before = json.dumps(base)
    series = events.Series(base)
    series.open()
    for effect in PLAIN:
        series.apply(effect)
    assert json.dumps(base) == before


def test_a_response_tells_how_many_messages_its_prompt_lacks() -> None:
    """From the first claim on, in every Response object; a takeover changes nothing."""
    series = events.Series(events.echo(RID, 1, "m", truncation="auto"))
    created = series.open()[0]
    claim = msgspec.structs.replace(CLAIM, dropped=4)
    (begun,) = series.apply(fold.Claimed(claim, 1))
    assert series.apply(fold.Claimed(msgspec.structs.replace(claim, own="b", prev="a"), 2)) == []
    ended = series.apply(fold.Ended("stop", "completed", "hi", USAGE, None, 5))[-1]
    assert created.response is not None
    assert "dropped_messages" not in created.response
    for event in (begun, ended):
        assert event.response is not None
        assert event.response["dropped_messages"] == 4
    assert series.snapshot()["dropped_messages"] == 4


def test_a_response_with_its_whole_prompt_tells_nothing() -> None:
    series = events.Series(events.echo(RID, 1, "m", truncation="auto"))
    series.open()
    series.apply(FIRST)
    assert "dropped_messages" not in series.snapshot()


@pytest.mark.parametrize("background", [False, True])
def test_a_place_in_the_queue_is_an_event_of_the_sdk_and_takes_no_number(background: bool) -> None:
    series = events.Series(echo(background))
    last = series.open()[-1].sequence_number
    event = series.waiting(queue_place.Place(12, 8.54))
    found = _stream_event.validate_json(event.body)
    assert isinstance(found, sdk.ResponseQueuedEvent)
    assert (found.sequence_number, found.response.status) == (last, "queued")
    assert found.model_extra == {"queue": {"position": 12, "eta_s": 10.0}}
    assert not event.terminal
    assert series.apply(FIRST)[0].sequence_number == last + 1


def test_the_revision_that_answers_is_told_where_the_echo_asks_for_it() -> None:
    """Of the claim of the first token, whichever claims come before and behind it."""
    base = {**echo(), events.REVISION: None}
    series = events.Series(base)
    shown = series.open()
    shown += series.apply(fold.Claimed(CLAIM, 1, "", "rev"))
    assert series.apply(fold.Claimed(CLAIM, 2, "", "other")) == []
    assert series.snapshot()[events.REVISION] == "other"
    for effect in (*text("Hello"), ended("stop")):
        shown += series.apply(effect)
    told = [event.response[events.REVISION] for event in shown if event.response]
    assert told == [None, "rev", "other"]
    assert base[events.REVISION] is None


class TestContinued:
    """Another model continues the text (log rule §25)."""

    def run(self, *effects: fold.Effect) -> list[events.Event]:
        series = run(effects)
        grammar = response_grammar.Grammar()
        for event in series:
            grammar.take(json.loads(event.body))
            _stream_event.validate_python(json.loads(event.body))
        return series

    def test_its_text_is_another_item_and_the_model_is_named_before_it(self) -> None:
        taken_over = fold.Claimed(CLAIM, 3, "small", "rev-2")
        series = self.run(
            *(FIRST, *text("Hel"), CONTINUED, fold.Accepted(1, [1], "lo"), taken_over),
            *(fold.Accepted(2, [2], ","), ended("stop", "!")),
        )
        item = [*ITEM_OPENED, "output_text.delta", *ITEM_CLOSED]
        assert kinds(series) == [
            *("created", "in_progress", *item, "in_progress", *ITEM_OPENED),
            *("output_text.delta", "output_text.delta", "output_text.delta"),
            *(*ITEM_CLOSED, "completed"),
        ]
        told, final = series[8].response, series[-1].response
        assert told is not None
        assert final is not None
        named = [{"output_index": 0, "model": "m"}, {"output_index": 1, "model": "small"}]
        for response in (told, final):
            assert (response["model"], response["fallback"]) == (
                *("small", {"from": "m", "items": named}),
            )
        assert told["output"] == final["output"][:1], "a reader that begins anew has all"
        shown = [(i["status"], i["content"][0]["text"], i["id"]) for i in final["output"]]
        assert shown == [("incomplete", "Hel", ITEM), ("completed", "lo,!", f"{ITEM}_1")]

    def test_a_model_without_a_token_is_not_named_beside_the_one_that_has_its_item(self) -> None:
        third = fold.Claimed(CLAIM, 3, "tiny", "rev-3", continues=True)
        series = self.run(FIRST, *text("Hel"), CONTINUED, third, fold.Accepted(1, [1], "lo"))
        assert series[-1].delta == "lo"
        told = [event.response for event in series if event.type == "response.in_progress"]
        assert told[-1] is not None
        assert told[-1]["fallback"]["items"] == [
            {"output_index": 0, "model": "m"},
            {"output_index": 1, "model": "tiny"},
        ]

    def test_one_that_adds_nothing_has_no_item(self) -> None:
        final = self.run(FIRST, *text("Hello"), CONTINUED, ended("stop"))[-1].response
        assert final is not None
        assert [item["status"] for item in final["output"]] == ["incomplete"]

    def test_the_model_that_was_asked_for_is_told_behind_another_fallback(self) -> None:
        first = fold.Claimed(CLAIM, 1, "small", "rev-2")
        third = fold.Claimed(CLAIM, 2, "tiny", "rev-3", continues=True)
        final = self.run(first, *text("Hel"), third, fold.Accepted(1, [1], "lo"), ended("stop"))
        assert final[-1].response is not None
        assert final[-1].response["fallback"] == {
            "from": "m",
            "items": [
                {"output_index": 0, "model": "small"},
                {"output_index": 1, "model": "tiny"},
            ],
        }

    def test_the_revision_is_that_of_the_model_that_goes_on(self) -> None:
        series = events.Series({**echo(), events.REVISION: None})
        series.open()
        for effect in (FIRST, *text("Hel"), CONTINUED):
            series.apply(effect)
        assert series.snapshot()[events.REVISION] == "rev-2"
