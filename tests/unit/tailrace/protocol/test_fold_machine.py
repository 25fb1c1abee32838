"""Workers that follow the writer rule, and a log that delays, loses and doubles their records: the
real fold beside the second one, step by step.

The writers are honest but unlucky: they stall for as long as they like and come back as zombies,
their records arrive late, twice or never, they claim again, yield, race and are cancelled. Each
token id is a hash of its writer's fencing token and of all ids before it. So a token that was
generated from another prefix than the accepted one shows.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass, field

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tailrace.protocol import fold, records
from tests.model import compare, second_fold

WORKERS = ("w1", "w2", "w3")
LENGTH = 6  # tokens of a whole answer


def generated(own: str, before: list[int]) -> int:
    """The token that follows `before` when the claim `own` generates it: it commits to its whole
    context."""
    return int.from_bytes(hashlib.sha256(f"{own}|{before}".encode()).digest()[:4], "big")


@dataclass
class Worker:
    """One worker as the writer rule has it.

    Attributes:
        own: fencing token of its newest claim; None before the first.
        ids: the context: accepted ids at its claim, and what it generated since; None while it
            waits for its claim to appear (the barrier).
        flight: records it appended that have not arrived, oldest first.
        read: how far it has read the log.
    """

    own: str | None = None
    ids: list[int] | None = None
    flight: deque[records.TokenRecord] = field(default_factory=deque)
    read: int = 0
    claims: int = 0


class HonestWorkers(stateful.RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.workers = {name: Worker() for name in WORKERS}
        self.log: list[second_fold.Entry] = []
        self.reader = fold.Fold(retain_ids=True)
        self.shown: list[int] = []  # ids as a client saw them
        self.ends = 0
        self.offset = 0

    def land(self, record: records.TokenRecord) -> None:
        """The record arrives in the log, and the reader, who tails it, applies it."""
        self.offset += 1 + self.offset % 3  # other responses' records lie in between
        entry = second_fold.Entry(self.offset, 1000 + self.offset, record)
        self.log.append(entry)
        outcome = self.reader.apply(entry.record, entry.offset, entry.timestamp)
        if isinstance(outcome, fold.Accepted):
            assert self.ends == 0
            assert outcome.seq == len(self.shown)
            for token in outcome.ids:
                assert isinstance(record, records.Tok)
                assert token == generated(record.own, self.shown), (
                    "a token was not generated from the accepted prefix"
                )
                self.shown.append(token)
        if isinstance(outcome, fold.Ended):
            self.ends += 1
            assert outcome.reason == "cancelled" or len(self.shown) == LENGTH

    def view(self, worker: Worker) -> fold.Fold:
        """The fold of what this worker has read."""
        state = fold.Fold(retain_ids=True)
        for entry in self.log[: worker.read]:
            state.apply(entry.record, entry.offset, entry.timestamp)
        return state

    @stateful.rule(name=st.sampled_from(WORKERS), share=st.floats(0, 1))
    def reads_on(self, name: str, share: float) -> None:
        worker = self.workers[name]
        worker.read += round(share * (len(self.log) - worker.read))
        self._barrier(worker)

    def _barrier(self, worker: Worker) -> None:
        """W3: the context is what was accepted when its own claim appeared; a claim that lost
        stands down."""
        if worker.own is None or worker.ids is not None:
            return
        state = fold.Fold(retain_ids=True)
        for entry in self.log[: worker.read]:
            outcome = state.apply(entry.record, entry.offset)
            if isinstance(entry.record, records.Claim) and entry.record.own == worker.own:
                if isinstance(outcome, fold.Claimed):
                    worker.ids = list(state.ids)
                else:
                    worker.own = None
                return

    @stateful.rule(name=st.sampled_from(WORKERS))
    def claims(self, name: str) -> None:
        """W2, a self-takeover too: at any moment, from whatever this worker has read."""
        worker = self.workers[name]
        view = self.view(worker)
        if view.phase is fold.Phase.DONE or worker.claims == 4:
            return
        worker.claims += 1
        worker.own = f"{name}-{worker.claims}"
        worker.ids = [] if view.owner is None else None  # a first claim may generate at once
        worker.flight.append(compare.claim(worker.own, view.owner, name))

    @stateful.rule(name=st.sampled_from(WORKERS), count=st.integers(1, 3))
    def generates(self, name: str, count: int) -> None:
        """W4: one frame, also from a worker that lost ownership and was not told."""
        worker = self.workers[name]
        if worker.own is None or worker.ids is None or len(worker.ids) >= LENGTH:
            return
        before, frame = list(worker.ids), list[int]()
        for _ in range(min(count, LENGTH - len(before))):
            frame.append(generated(worker.own, before + frame))
        text, marks = compare.growth(before, frame)
        worker.flight.append(compare.tok(worker.own, len(before), frame, before, text, marks))
        worker.ids = before + frame

    @stateful.rule(
        name=st.sampled_from(WORKERS), steps=st.integers(1, 8), arriving=st.integers(0, 8)
    )
    def works_for_a_while(self, name: str, steps: int, arriving: int) -> None:
        """The usual course, so that runs get far enough for the unusual to matter: claim, barrier,
        tokens, end; some of it arrives."""
        worker = self.workers[name]
        for _ in range(steps):
            if worker.own is None:
                self.reads_on(name, 1)
                self.claims(name)
            elif worker.ids is None:
                self.arrives(name, len(worker.flight))
                self.reads_on(name, 1)
            elif len(worker.ids) < LENGTH:
                self.generates(name, 1)
            else:
                self.ends_it(name)
                break
        self.arrives(name, arriving)

    @stateful.rule(name=st.sampled_from(WORKERS))
    def ends_it(self, name: str) -> None:
        """W5."""
        worker = self.workers[name]
        if worker.own is not None and worker.ids is not None and len(worker.ids) == LENGTH:
            worker.flight.append(compare.end(worker.own, worker.ids))

    @stateful.precondition(lambda self: len(self.shown) > 2)
    @stateful.rule(name=st.sampled_from(WORKERS))
    def yields(self, name: str) -> None:
        worker = self.workers[name]
        if worker.own is not None:
            worker.flight.append(compare.yield_(worker.own, len(worker.ids or [])))

    @stateful.rule(name=st.sampled_from(WORKERS), count=st.integers(1, 4))
    def arrives(self, name: str, count: int) -> None:
        flight = self.workers[name].flight
        for _ in range(min(count, len(flight))):
            self.land(flight.popleft())

    @stateful.precondition(lambda self: any(worker.flight for worker in self.workers.values()))
    @stateful.rule(name=st.sampled_from(WORKERS))
    def arrives_and_will_again(self, name: str) -> None:
        """A retry of the producer: a copy arrives now, another at any later time."""
        flight = self.workers[name].flight
        if flight:
            self.land(flight[0])
            flight.rotate(-1)

    @stateful.precondition(lambda self: any(worker.flight for worker in self.workers.values()))
    @stateful.rule(name=st.sampled_from(WORKERS))
    def is_lost(self, name: str) -> None:
        flight = self.workers[name].flight
        if flight:
            flight.popleft()

    @stateful.precondition(lambda self: len(self.shown) > 2)
    @stateful.rule(sure=st.sampled_from([False, False, False, True]))
    def is_cancelled(self, sure: bool) -> None:
        if sure:
            self.land(compare.cancel())

    @stateful.rule(start=st.floats(0, 1))
    def a_reader_reconnects(self, start: float) -> None:
        """It reads a part of the log again; nothing of that has an effect."""
        again = self.log[round(start * len(self.log)) :]
        for entry in again:
            assert (
                self.reader.apply(entry.record, entry.offset, entry.timestamp) is fold.Ignored.SEEN
            )

    @stateful.invariant()
    def nothing_shown_is_ever_taken_back(self) -> None:
        assert self.reader.ids == self.shown
        compare.assert_view(self.reader, self.shown)
        assert self.ends == (self.reader.phase is fold.Phase.DONE)
        assert self.ends <= 1

    @stateful.invariant()
    def the_second_fold_agrees(self) -> None:
        compare.assert_equal(self.reader, second_fold.History(self.log))

    def teardown(self) -> None:
        late = compare.fold_all(self.log)  # a reader that comes when all is over
        assert late.ids == self.shown
        hypothesis.event(f"claims that counted: {min(late.epoch, 3)}")
        hypothesis.event(f"ended: {late.ended.status if late.ended else None}")
        for reason in late.ignored:
            hypothesis.event(f"ignored: {reason.value}")


HonestWorkers.TestCase.settings = hypothesis.settings(
    max_examples=250, stateful_step_count=40, deadline=None
)
TestHonestWorkers = HonestWorkers.TestCase
