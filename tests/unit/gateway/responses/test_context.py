"""What a continuation knows of what came before, whichever store answers."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from gateway.responses import busy, context
from gateway.responses.memory import ResponseMemory
from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import errors, events, fold, ids, records
from tests.support import cases

ALICE, BOB = records.Owner("iss", "alice"), records.Owner("iss", "bob")
RID = ids.mint(ids.Address(b"abcd", 3, 7), b"0" * 11)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def calling(call_id: str) -> dict[str, Any]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def output(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "x"}


def response(text: str = "yes", status: str = "completed", *, store: bool = True) -> dict[str, Any]:
    output = (
        [{"type": "message", "content": [{"type": "output_text", "text": text}]}] if text else []
    )
    return events.response_object(events.echo(RID, 1, "m", store=store), status, output)


class TestTurns:
    def test_the_last_ten_turns_are_kept(self) -> None:
        dialogue = [m for i in range(14) for m in (user(f"q{i}"), answer(f"a{i}"))]
        assert context.last_turns(dialogue) == dialogue[8:]

    def test_a_turn_is_everything_up_to_its_answer(self) -> None:
        dialogue = [
            user("a"),
            user("b"),
            answer("1"),
            {"role": "system", "content": "s"},
            user("c"),
            answer("2"),
        ]
        assert context.last_turns(dialogue, 1) == dialogue[3:]

    def test_a_warm_up_without_answer_is_a_turn_too(self) -> None:
        dialogue = [user("a"), answer("1"), user("warm")]
        assert context.last_turns(dialogue, 1) == [user("warm")]
        assert context.last_turns(dialogue, 2) == dialogue

    def test_an_empty_answer_leaves_no_message(self) -> None:
        assert context.with_answer([user("a")], response("")) == [user("a")]
        assert context.with_answer([user("a")], response("b")) == [user("a"), answer("b")]

    def test_a_call_stays_with_its_output(self) -> None:
        loop = [m for i in range(12) for m in (calling(f"c{i}"), output(f"c{i}"))]
        dialogue = [user("q"), answer("a"), user("r"), *loop, answer("b")]
        assert context.last_turns(dialogue, 1) == dialogue[2:]
        assert context.last_turns(dialogue[:-1], 1) == dialogue[2:-1]
        assert context.last_turns(dialogue[:-2], 1) == dialogue[2:-2]

    def test_reasoning_that_stands_in_its_summary_is_part_of_the_answer(self) -> None:
        parts = [{"type": "summary_text", "text": "hm"}]
        reasoning = {"type": "reasoning", "summary": parts, "content": []}
        text = {"type": "message", "content": [{"type": "output_text", "text": "Yes."}]}
        whole = events.response_object(events.echo(RID, 1, "m"), "completed", [reasoning, text])
        (message,) = context.with_answer([], whole)
        assert message["reasoning_content"] == "hm"

    def test_calls_and_reasoning_are_part_of_the_answer(self) -> None:
        call = {
            "type": "function_call",
            "status": "completed",
            "call_id": "c1",
            "name": "get",
            "namespace": "crm",
            "arguments": "{}",
        }
        reasoning = {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "h"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        }
        text = {"type": "message", "content": [{"type": "output_text", "text": "I look."}]}
        custom = {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "c2",
            "name": "apply",
            "input": "x",
        }
        cut_short = {**call, "status": "incomplete", "arguments": "{"}
        whole = events.response_object(
            events.echo(RID, 1, "m"), "incomplete", [reasoning, text, call, custom, cut_short]
        )
        (message,) = context.with_answer([], whole)
        assert message == {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "crm__get", "arguments": "{}"},
                },
                {"id": "c2", "type": "custom", "custom": {"name": "apply", "input": "x"}},
            ],
            "cut": True,
        }
        assert context.decode(context.encode(ALICE, [message]), ALICE) == [message]
        done = {k: v for k, v in message.items() if k != "cut"}
        assert context.without_open_calls([message], set()) == [done]
        (one,) = context.without_open_calls([message], {"c1"})
        assert one == {**done, "tool_calls": done["tool_calls"][1:]}
        (none,) = context.without_open_calls([message], {"c1", "c2"})
        assert none == {k: v for k, v in done.items() if k != "tool_calls"}
        assert context.without_open_calls([calling("c1")], {"c1"}) == [calling("c1")], (
            "it must have an output"
        )
        assert context.without_open_calls([{**calling("c1"), "cut": True}], {"c1"}) == []
        incomplete = events.response_object(events.echo(RID, 1, "m"), "incomplete", [cut_short])
        assert context.with_answer([user("a")], incomplete) == [{**user("a"), "open": False}]

    def test_a_text_of_two_models_is_one_message(self) -> None:
        text = response("Hel")["output"] + response("lo")["output"]
        base = events.with_continuation(events.echo(RID, 1, "m"), "small", 1)
        whole = events.response_object(base, "completed", text)
        assert context.with_answer([user("a")], whole) == [user("a"), answer("Hello")]

    @hypothesis.given(st.lists(st.sampled_from(["user", "assistant", "system"]), max_size=60))
    def test_trimming_turn_by_turn_or_at_once_is_the_same(self, roles: list[str]) -> None:
        dialogue = [{"role": role, "content": str(i)} for i, role in enumerate(roles)]
        copy = context.last_turns(dialogue)
        assert dialogue[len(dialogue) - len(copy) :] == copy
        assert context.last_turns(copy) == copy
        assert sum(m["role"] == "assistant" for m in copy) <= context.MAX_TURNS

    def test_instructions_are_not_inherited(self) -> None:
        request = records.Request(
            RID,
            ALICE,
            "m",
            [{"role": "system", "content": "i"}, user("a")],
            records.Sampling(1),
            events.echo(RID, 1, "m", instructions="i"),
        )
        assert context.without_instructions(request) == [user("a")]

    def test_a_system_message_of_the_input_is_inherited(self) -> None:
        messages = [{"role": "system", "content": "s"}, user("a")]
        request = records.Request(
            RID, ALICE, "m", messages, records.Sampling(1), events.echo(RID, 1, "m")
        )
        assert context.without_instructions(request) == messages


class TestCached:
    def test_round_trip(self) -> None:
        assert context.decode(context.encode(ALICE, [user("a")]), ALICE) == [user("a")]

    def test_another_owners_turn_is_no_turn(self) -> None:
        assert context.decode(context.encode(ALICE, [user("a")]), BOB) is None

    @cases.each("value", [None, b"", b"{", b"[]", b'{"owner":5}', b"\xff"])
    def test_what_cannot_be_read_is_no_turn(self, value: bytes | None) -> None:
        assert context.decode(value, ALICE) is None


class Log:
    """A delivery that knows one response."""

    def __init__(self, output: dict[str, Any], phase: fold.Phase = fold.Phase.DONE) -> None:
        self.shown, self.phase = output, phase
        self.asked = 0

    async def find(self, rid: str, owner: records.Owner) -> delivery.Snapshot:
        self.asked += 1
        if rid != RID or owner != ALICE:
            raise delivery.NotFound(rid)
        return delivery.Snapshot(self.shown, self.phase, self.shown, None, ALICE)

    async def request_of(self, rid: str, owner: records.Owner) -> records.Request:
        return records.Request(
            RID, ALICE, "m", [user("a")], records.Sampling(1), events.echo(RID, 1, "m")
        )


class Cached:
    """A cache in a dictionary."""

    def __init__(self) -> None:
        self.turns: dict[str, bytes] = {}

    async def turn(self, rid: str) -> bytes | None:
        return self.turns.get(rid)

    async def put_turn(self, _owner: str, rid: str, state: bytes) -> None:
        self.turns[rid] = state


def resolver(entries: Log, cached: Cached | None = None) -> context.Resolver:
    return context.Resolver(entries, cached or Cached(), 8)  # type: ignore[arg-type]


class TestResolve:
    async def test_nothing_to_continue(self) -> None:
        assert await resolver(Log(response())).resolve(None, ALICE) == context.History([])

    async def test_connection_memory_answers_first_and_asks_nobody(self) -> None:
        entries = Log(response())
        history = await resolver(entries).resolve(
            RID, ALICE, ResponseMemory(RID, context.pack([user("mine")]))
        )
        assert history == context.History([user("mine")], 3)
        assert entries.asked == 0

    async def test_the_log_answers_once_and_then_the_cache(self) -> None:
        entries, cached = Log(response()), Cached()
        first = await resolver(entries, cached).resolve(RID, ALICE)
        assert first == context.History([user("a"), answer("yes")], 3)
        assert await resolver(entries, cached).resolve(RID, ALICE) == first
        assert entries.asked == 1

    @pytest.mark.parametrize("status", ["incomplete", "cancelled"])
    async def test_what_was_cut_short_can_be_continued(self, status: str) -> None:
        assert (await resolver(Log(response("par", status))).resolve(RID, ALICE)).messages[
            -1
        ] == answer("par")

    @cases.each(
        ("known", "owner", "rid"),
        [
            (Log(response(status="failed")), ALICE, RID),
            (Log(response(store=False)), ALICE, RID),
            (Log(response()), BOB, RID),
            (Log(response()), ALICE, "resp_nonsense"),
            (Log(response()), ALICE, ids.mint(ids.Address(b"abcd", 9, 7), b"0" * 11)),
        ],
        ids=["failed", "not stored", "somebody else's", "no id", "no such partition"],
    )
    async def test_refused_alike(self, known: Log, owner: records.Owner, rid: str) -> None:
        with pytest.raises(errors.ApiError) as error:
            await resolver(known).resolve(rid, owner)
        assert error.value.code == "previous_response_not_found"

    async def test_history_that_the_log_lost_is_a_past_that_is_not_found(self) -> None:
        class Lost(Log):
            async def request_of(self, rid: str, owner: records.Owner) -> records.Request:
                raise log.HistoryLost("gone")

        with pytest.raises(errors.ApiError) as error:
            await resolver(Lost(response())).resolve(RID, ALICE)
        assert error.value.code == "previous_response_not_found"

    async def test_one_that_still_runs_is_said_to_run(self) -> None:
        with pytest.raises(busy.Busy) as error:
            await resolver(Log(response(status="in_progress"), fold.Phase.LIVE)).resolve(RID, ALICE)
        assert (error.value.rid, error.value.error.param) == (RID, "previous_response_id")
        assert "in progress" in error.value.error.message
