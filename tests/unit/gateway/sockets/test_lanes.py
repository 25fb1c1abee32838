"""One connection: lanes, order, slots, memory, cancel, leaving."""

from __future__ import annotations

import tracemalloc
from typing import Any

import hypothesis
import hypothesis.stateful as stateful
import hypothesis.strategies as st
import msgspec
import pytest

from gateway.responses.memory import ResponseMemory
from gateway.sockets import lane_slots, lanes
from gateway.sockets.lanes import Begin, Cancel, Close, LaneScheduler, Leaving, Reply
from tailrace.delivery import kept_bytes
from tailrace.protocol import close_codes, errors
from tests.support import cases

FAILED = errors.server_error()


def event(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields)


def create(lane: str | None = None, **fields: Any) -> bytes:
    named = {"stream_id": lane} if lane is not None else {}
    return event({"type": "response.create", **named, **fields})


def codes(actions: list[lanes.Action]) -> list[str]:
    return [a.event["error"]["code"] for a in actions if isinstance(a, Reply)]


def begins(actions: list[lanes.Action]) -> list[tuple[str | None, Any]]:
    return [(a.lane, msgspec.json.decode(a.data).get("n")) for a in actions if isinstance(a, Begin)]


def memory_of(rid: str) -> ResponseMemory:
    return ResponseMemory(rid, rid.encode())


class TestLanes:
    def test_a_create_on_a_free_lane_begins_at_once(self) -> None:
        assert begins(LaneScheduler().receive(create(n=1))) == [(None, 1)]

    def test_the_second_on_the_same_lane_waits_for_the_end_of_the_first(self) -> None:
        c = LaneScheduler()
        c.receive(create(n=1))
        assert c.receive(create(n=2)) == []
        assert c.accepted(None, "r1") == []
        assert begins(c.ended(None, memory_of("r1"))) == [(None, 2)]

    def test_a_refused_create_lets_the_next_one_of_its_lane_begin_after_the_error(self) -> None:
        c = LaneScheduler()
        c.receive(create("a", n=1))
        c.receive(create("a", n=2))
        actions = c.rejected("a", FAILED)
        assert isinstance(actions[0], Reply)
        assert actions[0].event["stream_id"] == "a"
        assert begins(actions) == [("a", 2)]

    def test_lanes_run_beside_each_other(self) -> None:
        c = LaneScheduler()
        assert begins([*c.receive(create("a")), *c.receive(create("b")), *c.receive(create())]) == [
            ("a", None),
            ("b", None),
            (None, None),
        ]

    def test_above_the_slots_lanes_wait_in_the_order_they_came(self) -> None:
        c = LaneScheduler(max_in_flight=2)
        c.receive(create("a", n=1))
        c.receive(create("b", n=1))
        c.receive(create("a", n=2))
        assert c.receive(create("c", n=1)) == []
        assert c.in_flight == 2
        assert begins(c.ended("a", None)) == [("c", 1)]
        assert begins(c.ended("b", None)) == [("a", 2)]

    def test_sixteen_run_and_the_seventeenth_waits(self) -> None:
        c = LaneScheduler()
        actions = [a for i in range(17) for a in c.receive(create(f"l{i}"))]
        assert len(begins(actions)) == 16
        assert begins(c.ended("l3", None)) == [("l16", None)]

    def test_the_thirty_third_name_is_refused_and_the_default_lane_is_not_counted(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        for i in range(32):
            assert codes(c.receive(create(f"l{i}"))) == []
        assert codes(c.receive(create("one-more"))) == ["websocket_stream_limit_reached"]
        assert codes(c.receive(create("l5"))) == []
        assert codes(c.receive(create())) == []

    @cases.each("name", ["", "a b", "ä", "x" * 257, 5, [], {}, True, "a\n"])
    def test_a_bad_name_is_told_without_a_lane(self, name: Any) -> None:
        actions = LaneScheduler().receive(event({"type": "response.create", "stream_id": name}))
        assert codes(actions) == ["invalid_stream_id"]
        assert isinstance(actions[0], Reply)
        assert "stream_id" not in actions[0].event

    def test_null_is_the_default_lane(self) -> None:
        assert begins(
            LaneScheduler().receive(event({"type": "response.create", "stream_id": None}))
        ) == [(None, None)]

    def test_what_queues_up_is_bounded_in_number(self) -> None:
        c = LaneScheduler()
        answers = [codes(c.receive(create(n=i))) for i in range(lane_slots.MAX_QUEUED + 2)]
        assert answers[-1] == ["rate_limit_exceeded"]
        assert [a for a in answers[:-1] if a] == []

    def test_what_queues_up_is_bounded_in_bytes(self) -> None:
        c = LaneScheduler()
        half = create(pad="x" * (lane_slots.MAX_QUEUED_BYTES // 2 - 100))
        c.receive(half)
        c.accepted(None, "r1")  # the one that runs does not wait
        assert codes([*c.receive(half), *c.receive(half)]) == []
        assert codes(c.receive(half)) == ["rate_limit_exceeded"]

    def test_what_waits_is_kept_as_the_client_sent_it(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        payload = create(input=[[]] * 1000)
        c.receive(payload)
        (begin,) = c.ended(None, None)
        assert begin == Begin(None, payload)

    def test_what_is_no_event_is_refused_at_once(self) -> None:
        for data, code in ((b"[", "invalid_json"), (b"[]", "invalid_type"), (b"", "invalid_json")):
            with pytest.raises(errors.ApiError) as error:
                LaneScheduler().receive(data)
            assert error.value.code == code


class TestKeptBytes:
    """Whatever a socket keeps counts for its principal, and nothing counts afterwards."""

    def test_two_sockets_of_one_principal_share_the_bound_of_what_waits(self) -> None:
        budget = kept_bytes.KeptBytes(1000)
        one, two = (LaneScheduler(account=budget.account("alice")) for _ in range(2))
        body = create(pad="x" * 400)
        assert codes([*one.receive(body), *two.receive(body)]) == []
        assert codes(two.receive(body)) == ["rate_limit_exceeded"]
        assert codes(LaneScheduler(account=budget.account("bob")).receive(body)) == []
        one.rejected(None, FAILED)
        assert codes(two.receive(body)) == []

    def test_what_waits_takes_as_much_memory_as_it_has_bytes(self) -> None:
        """Decoded, these creates take more than twenty times their bytes."""
        body = create(input="hi", metadata=[[]] * 40_000)
        c = LaneScheduler()
        c.receive(create())
        tracemalloc.start()
        try:
            for _ in range(lane_slots.MAX_QUEUED_BYTES // len(body)):
                c.receive(bytes(bytearray(body)))
            size, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert size < 1.1 * lane_slots.MAX_QUEUED_BYTES

    def test_memories_over_the_bound_of_the_socket_are_dropped_oldest_first(self) -> None:
        budget = kept_bytes.KeptBytes()
        c = LaneScheduler(account=budget.account("alice"))
        third = b"x" * (lane_slots.MAX_MEMORY_BYTES // 3)
        for lane in ("a", "b", "c", "d"):
            c.receive(create(lane))
            c.accepted(lane, lane)
            c.ended(lane, ResponseMemory(lane, third))
        c.receive(create("e"))
        assert [c.recall("e", lane) is not None for lane in ("a", "b", "c", "d")] == [
            *(False, True, True, True)
        ]
        c.rejected("e", FAILED)
        assert budget.of("alice") == 3 * len(third)

    def test_a_memory_that_does_not_fit_at_all_is_not_kept(self) -> None:
        budget = kept_bytes.KeptBytes(1000)
        c = LaneScheduler(account=budget.account("alice"))
        c.receive(create())
        c.accepted(None, "r1")
        c.ended(None, ResponseMemory("r1", b"x" * 1001))
        c.receive(create())
        assert c.recall(None, "r1") is None

    @hypothesis.given(st.data())
    def test_nothing_counts_once_all_is_over(self, data: st.DataObject) -> None:
        budget = kept_bytes.KeptBytes()
        with budget.account("alice") as account:
            c = LaneScheduler(max_in_flight=2, account=account)
            busy: list[str | None] = []
            ended: list[tuple[str | None, str]] = []
            choice: st.SearchStrategy[Any] = st.booleans()
            names: st.SearchStrategy[Any] = st.sampled_from([None, "a", "b"])
            for n in range(data.draw(st.integers(0, 12))):
                if busy and data.draw(choice):
                    lane = busy.pop(0)
                    c.accepted(lane, f"r{n}")
                    memory = memory_of(f"r{n}") if data.draw(choice) else None
                    ended.append((lane, f"r{n}"))
                    actions = c.ended(lane, memory)
                else:
                    actions = c.receive(create(data.draw(names)))
                busy += [lane for lane, _ in begins(actions)]
            waits = c.leave(Leaving.DRAIN)
            assert len(codes(waits)) == sum(isinstance(a, Reply) for a in waits)
            while busy:
                lane = busy.pop()
                c.rejected(lane, FAILED)
            actual = [c.recall(lane, rid) for lane, rid in ended]
            assert account.size == sum(len(each.state) for each in actual if each is not None)
        assert budget.of("alice") == 0


class TestMemory:
    def test_a_lane_remembers_its_last_response_only(self) -> None:
        c = LaneScheduler()
        for rid in ("r1", "r2"):
            c.receive(create())
            c.accepted(None, rid)
            c.ended(None, memory_of(rid))
        c.receive(create())
        assert c.recall(None, "r2") == memory_of("r2")
        assert c.recall(None, "r1") is None

    def test_another_lane_may_fork(self) -> None:
        c = LaneScheduler()
        c.receive(create("a"))
        c.ended("a", memory_of("r1"))
        c.receive(create("b"))
        assert c.recall("b", "r1") == memory_of("r1")

    def test_a_continuation_that_is_refused_evicts_what_it_continued(self) -> None:
        c = LaneScheduler()
        c.receive(create("a"))
        c.ended("a", memory_of("r1"))
        c.receive(create("a"))
        c.rejected("a", FAILED, "r1")
        c.receive(create("a"))
        assert c.recall("a", "r1") is None

    def test_a_continuation_that_fails_evicts_too(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        c.ended(None, memory_of("r1"))
        c.receive(create())
        c.accepted(None, "r2")
        c.ended(None, None, "r1")
        c.receive(create())
        assert c.recall(None, "r1") is None

    def test_a_failed_fork_keeps_the_parent(self) -> None:
        c = LaneScheduler()
        c.receive(create("a"))
        c.ended("a", memory_of("r1"))
        c.receive(create("b"))
        c.rejected("b", FAILED, "r1")
        c.receive(create("a"))
        assert c.recall("a", "r1") == memory_of("r1")

    def test_a_refusal_that_continued_something_else_evicts_nothing(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        c.ended(None, memory_of("r1"))
        c.receive(create())
        c.rejected(None, FAILED, ["not", "an", "id"])
        c.receive(create())
        assert c.recall(None, "r1") == memory_of("r1")


class TestCancel:
    def test_bare_means_the_default_lane(self) -> None:
        c = LaneScheduler()
        for lane in (None, "a"):
            c.receive(create(lane))
            c.accepted(lane, f"r-{lane}")
        assert c.receive(event({"type": "response.cancel"})) == [Cancel("r-None", own=True)]

    def test_bare_means_the_only_one(self) -> None:
        c = LaneScheduler()
        c.receive(create("a"))
        c.accepted("a", "r1")
        assert c.receive(event({"type": "response.cancel"})) == [Cancel("r1", own=True, lane="a")]

    def test_bare_with_several_named_ones_is_ambiguous(self) -> None:
        c = LaneScheduler()
        for lane in ("a", "b"):
            c.receive(create(lane))
            c.accepted(lane, lane)
        assert codes(c.receive(event({"type": "response.cancel"}))) == [
            "missing_required_parameter"
        ]

    def test_by_lane_and_by_id(self) -> None:
        c = LaneScheduler()
        for lane in ("a", "b"):
            c.receive(create(lane))
            c.accepted(lane, f"r-{lane}")
        assert c.receive(event({"type": "response.cancel", "stream_id": "b"})) == [
            Cancel("r-b", own=True, lane="b")
        ]
        assert c.receive(event({"type": "response.cancel", "response_id": "r-a"})) == [
            Cancel("r-a", own=True, lane="a")
        ]

    def test_while_it_is_being_submitted_the_cancel_follows_the_acknowledgement(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        assert c.receive(event({"type": "response.cancel"})) == []
        assert c.receive(event({"type": "response.cancel"})) == []
        assert c.accepted(None, "r1") == [Cancel("r1", own=True)]

    def test_asking_again_writes_no_second_record_unless_the_first_failed(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        c.accepted(None, "r1")
        assert c.receive(event({"type": "response.cancel"})) == [Cancel("r1", own=True)]
        assert c.receive(event({"type": "response.cancel", "response_id": "r1"})) == []
        c.cancel_failed(None)
        assert c.receive(event({"type": "response.cancel"})) == [Cancel("r1", own=True)]

    def test_the_next_response_of_the_lane_is_not_cancelled_with_it(self) -> None:
        c = LaneScheduler()
        c.receive(create(n=1))
        c.receive(create(n=2))
        c.receive(event({"type": "response.cancel"}))
        c.accepted(None, "r1")
        c.ended(None, None)
        assert c.accepted(None, "r2") == []

    def test_a_cancel_that_lost_its_race_is_no_error(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        c.accepted(None, "r1")
        c.ended(None, memory_of("r1"))
        assert c.receive(event({"type": "response.cancel", "response_id": "r1"})) == []
        assert c.receive(event({"type": "response.cancel"})) == []

    def test_an_id_of_another_connection_is_looked_up(self) -> None:
        assert LaneScheduler().receive(event({"type": "response.cancel", "response_id": "r9"})) == [
            Cancel("r9", own=False)
        ]

    def test_an_id_that_is_no_text(self) -> None:
        assert codes(
            LaneScheduler().receive(event({"type": "response.cancel", "response_id": 5}))
        ) == ["invalid_type"]


class TestOtherEvents:
    @cases.each("kind", [None, "ping", "response.creat", 5, ["response.create"], {}])
    def test_an_unknown_type_is_an_error_event_and_no_more(self, kind: Any) -> None:
        c = LaneScheduler()
        assert codes(c.receive(event({"type": kind}))) == ["unknown_event"]
        assert begins(c.receive(create())) == [(None, None)]

    def test_steering_is_refused_in_its_own_shape_with_the_input(self) -> None:
        (action,) = LaneScheduler().receive(
            event({"type": "response.steer", "previous_response_id": "r1", "input": "go left"})
        )
        assert isinstance(action, Reply)
        assert action.event["type"] == "response.steer.failed"
        assert action.event["error"]["code"] == "steering_not_supported"
        assert action.event["steer"] == {"previous_response_id": "r1", "input": "go left"}


class TestLeaving:
    def test_an_idle_connection_closes_at_once(self) -> None:
        assert LaneScheduler().leave(Leaving.DRAIN) == [Close(close_codes.CloseCode.RESTART)]

    def test_what_runs_ends_first_and_what_waits_is_refused_on_its_lane(self) -> None:
        c = LaneScheduler()
        c.receive(create("a", n=1))
        c.receive(create("a", n=2))
        actions = c.leave(Leaving.DRAIN)
        assert codes(actions) == ["service_unavailable"]
        assert isinstance(actions[0], Reply)
        assert actions[0].event["stream_id"] == "a"
        assert c.ended("a", None) == [Close(close_codes.CloseCode.RESTART)]

    def test_new_creates_are_refused_meanwhile(self) -> None:
        c = LaneScheduler()
        c.receive(create("a"))
        c.leave(Leaving.DRAIN)
        assert codes(c.receive(create("b"))) == ["service_unavailable"]

    def test_of_age_it_says_so_in_the_words_clients_recover_on(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        assert c.leave(Leaving.AGE) == []
        assert codes(c.receive(create())) == ["websocket_connection_limit_reached"]
        actions = c.ended(None, None)
        assert codes(actions) == ["websocket_connection_limit_reached"]
        assert actions[-1] == Close(close_codes.CloseCode.RESTART)

    def test_the_first_reason_stays(self) -> None:
        c = LaneScheduler()
        c.receive(create())
        c.leave(Leaving.AGE)
        assert c.leave(Leaving.DRAIN) == []
        assert c.leaving is Leaving.AGE


def test_an_adopted_response_holds_its_lane_until_it_ends() -> None:
    c = LaneScheduler()
    c.adopt("r1", None)
    assert c.receive(create(n=1)) == []
    assert c.receive(event({"type": "response.cancel"})) == [Cancel("r1", own=True)]
    assert begins(c.ended(None, None)) == [(None, 1)]


class Lanes(stateful.RuleBasedStateMachine):
    """For every order of arrival: one at a time per lane, in the lane's order, never more than the
    slots, and no lane starves."""

    names = st.sampled_from([None, "a", "b", "c", "d"])

    def __init__(self) -> None:
        super().__init__()
        self.c = LaneScheduler(max_in_flight=3)
        self.asked: dict[str | None, list[int]] = {}
        self.began: dict[str | None, list[int]] = {}
        self.busy: set[str | None] = set()
        self.count = 0

    def see(self, actions: list[lanes.Action]) -> None:
        for lane, n in begins(actions):
            assert lane not in self.busy
            self.busy.add(lane)
            self.began.setdefault(lane, []).append(n)

    @stateful.rule(lane=names)
    def create(self, lane: str | None) -> None:
        self.count += 1
        self.asked.setdefault(lane, []).append(self.count)
        self.see(self.c.receive(create(lane, n=self.count)))

    @stateful.rule(lane=names, well=st.booleans())
    def end(self, lane: str | None, well: bool) -> None:
        if lane in self.busy:
            self.busy.discard(lane)
            self.see(self.c.ended(lane, None) if well else self.c.rejected(lane, FAILED))

    @stateful.invariant()
    def order_and_slots(self) -> None:
        assert len(self.busy) == self.c.in_flight <= 3
        waiting = 0
        for lane, sizes in self.asked.items():
            began = self.began.get(lane, [])
            assert sizes[: len(began)] == began
            waiting += len(sizes) > len(began) and lane not in self.busy
        assert not waiting or len(self.busy) == 3

    def teardown(self) -> None:
        while self.busy:
            lane = self.busy.pop()
            self.see(self.c.ended(lane, None))
        assert self.began == self.asked
        assert self.c.idle


TestLanesInAnyOrder = Lanes.TestCase
TestLanesInAnyOrder.settings = hypothesis.settings(max_examples=60, deadline=None)
