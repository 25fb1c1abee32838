"""The sender of a watch socket: what it writes, in which order, and when it is finished."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tailrace import log
from tailrace.delivery import feed, outbox
from tailrace.protocol import close_codes, events, fold
from tailrace.web import watch_sender, write_deadline
from tests.support import compact_reader, waiting


class Event:
    def __init__(self, number: int) -> None:
        self.number = number
        self.body = b"%d" % number


class Subscription:
    """Gives one batch at a time; then what it has ended with, if it has."""

    status = "completed"

    def __init__(self, *batches: list[int], ended: bool = False) -> None:
        self._batches = list(batches)
        self._ends = ended

    @property
    def ended(self) -> bool:
        return self._ends and not self._batches

    @property
    def ready(self) -> bool:
        return bool(self._batches)

    def add(self, batch: list[int]) -> None:
        self._batches.append(batch)

    def pending(self) -> list[Any]:
        return [Event(number) for number in self._batches.pop(0)] if self._batches else []


class Answering(Subscription):
    """The same with the events of a plain answer."""

    def __init__(self, rid: str, *batches: list[int], ended: bool = False) -> None:
        super().__init__(*batches, ended=ended)
        series = events.Series(events.echo(rid, 1, "m"))
        self.series = series.open()
        for seq in range(9):
            self.series += series.apply(fold.Accepted(seq, [seq], f"w{seq} "))

    def pending(self) -> list[Any]:
        return [self.series[event.number] for event in super().pending()]


class Failing(Subscription):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def pending(self) -> list[Event]:
        raise self._error


class Socket:
    """Keeps what is sent. `on_send`, when set, is called after each message."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.on_send: Any = None

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(json.loads(message["text"]))
        await asyncio.sleep(0)
        if self.on_send is not None:
            self.on_send()


def make_socket() -> Any:
    """A socket that passes for Starlette's."""
    return Socket()


class Parts:
    """A sender with what it needs; `outcome` is its finished task."""

    def __init__(self, *, compact: bool = False, **watches: Subscription) -> None:
        self.socket = make_socket()
        self.watches: dict[str, Any] = dict(watches)
        self.lost: list[str] = []
        self.outcome: asyncio.Future[watch_sender.SendTask] = asyncio.Future()
        self.sender = watch_sender.WatchSender(
            self.socket,
            self.watches,
            unwatch=lambda rid: self.watches.pop(rid, None),
            on_lost=self._on_lost,
            on_finished=self.outcome.set_result,
            compact=compact,
        )

    def _on_lost(self, rid: str, _error: Exception) -> None:
        self.lost.append(rid)
        del self.watches[rid]

    async def finished(self) -> watch_sender.SendTask:
        return await asyncio.wait_for(self.outcome, 5)

    @property
    def told(self) -> list[Any]:
        """(response id, events) of each message with events, else its type."""
        return [
            (m["response_id"], m["events"]) if m["type"] == "watch.events" else m["type"]
            for m in self.socket.sent
        ]


async def test_messages_go_before_events_and_responses_take_turns() -> None:
    parts = Parts(a=Subscription([0], [1], ended=True), b=Subscription([5], ended=True))
    parts.sender.ready("a")
    parts.sender.ready("b")
    parts.sender.note({"type": "watch.draining"})
    assert (await parts.finished()).result() is None
    assert parts.told == [
        *("watch.draining", ("a", [0]), ("b", [5]), "watch.done"),
        *(("a", [1]), "watch.done"),
    ]


async def test_the_compact_form_is_that_of_responses_alone() -> None:
    parts = Parts(
        compact=True,
        a=Answering("resp_a", [0, 1, 2, 3], [4, 5], ended=True),
        b=Answering("resp_b", [5], [6], ended=True),
    )
    parts.watches[feed.NAME] = Subscription([7])
    for rid in parts.watches:
        parts.sender.ready(rid)
    parts.sender.note({"type": "watch.draining"})
    await waiting.eventually(lambda: len(parts.socket.sent) == 8, "all is sent")
    del parts.watches[feed.NAME]
    parts.sender.forget(feed.NAME)
    await parts.finished()
    draining, a0, b0, fed, a1, a_done, b1, b_done = parts.socket.sent
    assert (draining, fed["type"]) == ({"type": "watch.draining"}, "feed.events")
    assert [(m["response_id"], m["number"], len(m["events"])) for m in (a0, b0)] == [
        ("a", 0, 4),
        ("b", 1, 1),
    ]
    assert (a1, b1) == ([0, "w1 ", "w2 "], [1, "w3 "])
    for rid, done in (("a", a_done), ("b", b_done)):
        assert done == {"type": "watch.done", "response_id": rid, "status": "completed"}


async def test_a_watch_that_begins_again_tells_its_number_again() -> None:
    """Also where the write of the former one's events has not ended."""
    former, later = Answering("resp_a", [0, 1, 2, 3, 4], [5]), Answering("resp_a", [4], ended=True)
    parts = Parts(compact=True, a=former, b=Answering("resp_b", [0]))

    def again() -> None:
        if parts.watches.get("a") is former:
            del parts.watches["a"]
            parts.sender.forget("a")
            parts.watches["a"] = later
            parts.sender.ready("a")

    parts.socket.on_send = again
    parts.sender.ready("a")
    parts.sender.ready("b")
    await waiting.eventually(lambda: len(parts.socket.sent) == 4, "all is sent")
    first, _, second, done = parts.socket.sent
    reader = compact_reader.Reader()
    read = [reader.read(json.dumps(each)) for each in parts.socket.sent]
    assert [m["response_id"] for m in read] == ["a", "b", "a", "a"]
    assert [e["sequence_number"] for m in read for e in m.get("events", ())] == [*range(5), 0, 4]
    assert (first["number"], type(second["events"][0])) == (0, dict)
    assert done["type"] == "watch.done"
    parts.sender.cancel()
    assert (await parts.finished()).cancelled()


async def test_it_stays_while_a_response_is_followed_and_ends_with_the_last() -> None:
    subscription = Subscription([0])
    parts = Parts(a=subscription)
    parts.sender.ready("a")
    await waiting.eventually(lambda: parts.told == [("a", [0])], "one batch sent")
    subscription.add([1])
    parts.sender.ready("a")
    await waiting.eventually(
        lambda: parts.told == [("a", [0]), ("a", [1])], "the second batch sent"
    )
    assert not parts.outcome.done()
    del parts.watches["a"]
    parts.sender.forget("a")
    assert (await parts.finished()).result() is None


async def test_a_response_that_has_ended_is_done_and_watched_no_more() -> None:
    parts = Parts(a=Subscription([0], ended=True))
    parts.sender.ready("a")
    await parts.finished()
    assert parts.told == [("a", [0]), "watch.done"]
    assert not parts.watches


async def test_what_is_forgotten_or_not_watched_is_not_sent() -> None:
    parts = Parts(a=Subscription([0]))
    parts.sender.ready("a")
    parts.sender.ready("unknown")
    del parts.watches["a"]
    parts.sender.forget("a")
    await parts.finished()
    assert parts.told == []


async def test_no_end_is_told_of_a_response_unwatched_during_its_last_write() -> None:
    parts = Parts(a=Subscription([0], ended=True))
    parts.socket.on_send = parts.watches.clear
    parts.sender.ready("a")
    assert (await parts.finished()).result() is None
    assert parts.told == [("a", [0])]


async def test_a_message_that_comes_when_the_task_has_just_returned_is_sent_too() -> None:
    parts = Parts()
    loop = asyncio.get_running_loop()

    def sent() -> None:
        if len(parts.socket.sent) == 1:  # runs after the task's return and before its callback
            loop.call_soon(parts.sender.note, {"type": "second"})

    parts.socket.on_send = sent
    parts.sender.note({"type": "first"})
    await parts.finished()
    assert parts.told == ["first", "second"]


async def test_a_slow_client_is_the_outcome() -> None:
    parts = Parts(a=Failing(outbox.Slow()))
    parts.sender.ready("a")
    assert (await parts.finished()).result() is close_codes.CloseCode.SLOW


async def test_a_response_that_the_log_lost_is_told_and_the_others_go_on() -> None:
    parts = Parts(a=Failing(log.HistoryLost("gone")), b=Subscription([5], ended=True))
    parts.sender.ready("a")
    parts.sender.ready("b")
    await parts.finished()
    assert parts.lost == ["a"]
    assert parts.told == [("b", [5]), "watch.done"]


async def test_it_is_overdue_only_while_a_write_waits() -> None:
    parts = Parts()
    stuck_now = asyncio.Event()

    async def stuck(_message: dict[str, Any]) -> None:
        stuck_now.set()
        await asyncio.Event().wait()

    parts.socket.send = stuck
    loop = asyncio.get_running_loop()
    assert not parts.sender.overdue(loop.time() + write_deadline.WRITE_DEADLINE_S * 2)
    parts.sender.note({"type": "x"})
    await asyncio.wait_for(stuck_now.wait(), 5)
    assert parts.sender.overdue(loop.time() + write_deadline.WRITE_DEADLINE_S * 2)
    assert not parts.sender.overdue(loop.time())
    task = parts.sender.cancel()
    assert task is not None
    await asyncio.wait([task])


async def test_a_cancelled_sender_sends_no_more() -> None:
    parts = Parts(a=Subscription([0]))
    parts.sender.note({"type": "x"})
    parts.sender.ready("a")
    parts.sender.cancel()
    assert (await parts.finished()).cancelled()
    assert parts.told == []


async def test_a_sender_cancelled_when_its_task_has_just_returned_does_not_start_another() -> None:
    parts = Parts()
    loop = asyncio.get_running_loop()

    def too_late() -> None:
        parts.sender.note({"type": "second"})
        parts.sender.cancel()

    parts.socket.on_send = lambda: loop.call_soon(too_late)
    parts.sender.note({"type": "first"})
    await parts.finished()
    assert parts.told == ["first"]


async def test_messages_that_a_client_does_not_take_are_bounded_in_bytes() -> None:
    parts = Parts()
    note = {"type": "watch.error", "padding": "x" * 1000}
    kept = 0
    while parts.sender.note(note):
        kept += 1
        assert kept < watch_sender.MAX_NOTED_BYTES
    assert 0.9 * watch_sender.MAX_NOTED_BYTES < kept * 1000 <= watch_sender.MAX_NOTED_BYTES
    assert (await parts.finished()).result() is None
    assert len(parts.socket.sent) == kept
    assert parts.sender.note(note), "what was sent is not kept"
