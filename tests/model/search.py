"""Exhaustive search: every interleaving of a few workers, their delayed, doubled and lost records,
and a cancel, through the real fold.

A state is a tuple: what the log came to (the fold), each worker, each worker's records in flight
(FIFO: one sender per partition), and what may still go wrong. A step is one claim, one record
arriving in the log, one loss, one double, or the cancel. A stopped worker is one that appends no
more, and a zombie one whose records arrive late. Two reductions lose no interleaving:
- a worker appends all frames it will ever append for a claim as soon as it knows its context (any
  number of them, for it may stop or claim again at any point), because later is the same as a
  longer delay;
- a record that is ignored whenever it arrives, because its owner can never be owner (again) or the
  response has ended, leaves the flight at once. That it is ignored now is checked on the real fold.
  Broken folds and writers are searched without this reduction.

Workers may have different models: behind tokens of another one a worker continues their text in a
segment of its own (log rule §25), or writes nothing where its claim did not say so.

Checked at every arrival: an accepted token was generated from exactly the accepted prefix before
it, by a worker with the model of its segment; text and marks are those of the accepted ids; what
was shown is never taken back; at most one end, after which nothing is accepted; an end that a
worker wrote comes after the whole answer.

The rolling hash is switched off: owner, compare-and-set, `seq` and the barrier must be enough alone
(the hash is a second line, and would hide that a first one is missing).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import msgspec

from tailrace.protocol import fold, records
from tests.model import compare


class Setting(NamedTuple):
    """The bounds of one search."""

    workers: int
    claims: int  # per worker
    tokens: int  # of the whole answer
    doubles: int = 0
    losses: int = 0
    cancels: int = 0
    models: tuple[int, ...] = ()  # by worker; none: all have one


# A token id says by whom and after which prefix it was generated, and where its segment began. Ids
# are small numbers given out on first use.
_codes: dict[tuple[int, tuple[int, ...], int], int] = {}
_prefixes: dict[int, tuple[int, ...]] = {}  # only of the segment


def token(worker: int, before: tuple[int, ...], begin: int = 0) -> int:
    code = _codes.setdefault((worker, before, begin), len(_codes) + 1)
    _prefixes[code] = before[begin:]
    return code


class Worker(NamedTuple):
    """`waiting` is the fencing token of the claim it waits for at the barrier, None otherwise."""

    claims: int = 0
    waiting: str | None = None


class Log(NamedTuple):
    """What the records so far came to: all of the fold's state that its decisions depend on."""

    owner: str | None = None
    ids: tuple[int, ...] = ()
    done: bool = False
    model: int = 0  # of the present segment
    former: tuple[int, ...] = ()  # how many ids came before each later segment

    @property
    def begin(self) -> int:
        return self.former[-1] if self.former else 0


Message = tuple[
    Any, ...
]  # a record in flight as a small tuple, which is quick to compare: kind and the fields that matter


class State(NamedTuple):
    log: Log
    workers: tuple[Worker, ...]
    flights: tuple[tuple[Message, ...], ...]
    doubles: int
    losses: int
    cancels: int


class Violation(Exception):
    """The rule was broken; the message says how."""


def fresh_tokens(worker: int, before: Worker, log: Log) -> str:
    """A fresh fencing token for every claim."""
    return f"{worker}.{before.claims}"


def integer_epochs(worker: int, before: Worker, log: Log) -> str:
    """`max + 1`, as in leader election with a counter: two racers pick the same number."""
    return str(int(log.owner or 0) + 1)


@dataclass
class Search:
    """One search; `fold_class`, `name_claim`, `barrier`, `replays` and `own_model` exist to be
    replaced by broken ones. Without `replays` a takeover's parser begins behind the accepted ids.
    Without `own_model` a worker goes on behind another model's ids.

    Attributes:
        visited: the states reached so far.
        outcomes: how often a distinct (log, record) came to what: shows that the search reached the
            corners.
        takeovers: accepted claims with k > 0 tokens before them.
        continued: those of them that begin a segment.
    """

    setting: Setting
    fold_class: type[fold.Fold] = fold.Fold
    name_claim: Callable[[int, Worker, Log], str] = fresh_tokens
    barrier: bool = True
    replays: bool = True
    own_model: bool = True
    prune: bool = True
    visited: set[State] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    takeovers: int = 0
    continued: int = 0

    def run(self) -> None:
        """Visit every state.

        Raises:
            Violation: a reachable state breaks the rule.
        """
        with hash_switched_off():
            self.arrive = functools.cache(self._arrive)
            s = self.setting
            start = State(
                Log(), (Worker(),) * s.workers, ((),) * s.workers, s.doubles, s.losses, s.cancels
            )
            self.visited = {start}
            open_ = [start]
            while open_:
                for following in self.steps(open_.pop()):
                    if following not in self.visited:
                        self.visited.add(following)
                        open_.append(following)

    @property
    def states(self) -> int:
        """States visited."""
        return len(self.visited)

    def model(self, worker: int) -> int:
        """The model of a worker."""
        return self.setting.models[worker] if self.setting.models else 0

    def logs(self) -> set[Log]:
        """All that the log came to in any state."""
        return {state.log for state in self.visited}

    def steps(self, state: State) -> Iterator[State]:
        """All states one step further."""
        for w in range(self.setting.workers):
            if not state.log.done and state.workers[w].claims < self.setting.claims:
                yield from self._claims(state, w)
            if state.flights[w]:
                yield from self._arrivals(state, w)
        if state.cancels:
            log, _ = self.arrive(state.log, ("CANCEL",))
            yield self._settled(state._replace(log=log, cancels=state.cancels - 1))

    def _claims(self, state: State, w: int) -> Iterator[State]:
        """W2: at any moment, also over its own claim (self-takeover)."""
        worker = state.workers[w]
        own, prev = self.name_claim(w, worker, state.log), state.log.owner
        model = self.model(w)
        continues = bool(state.log.ids) and state.log.model != model
        claimed = _append(state, w, [("CLAIM", own, prev, model, continues)])
        if prev is None or not self.barrier:  # W3: a first claim generates at once
            yield from self._generates(
                _with(claimed, w, Worker(worker.claims + 1)), w, own, state.log
            )
        else:
            yield _with(claimed, w, Worker(worker.claims + 1, own))

    def _generates(self, state: State, w: int, own: str, log: Log) -> Iterator[State]:
        """W4 and W5: behind what `log` has, as many records as it comes to."""
        series: list[Message] = []
        before = log.ids
        fed = 0 if self.replays else len(before) - log.begin
        while len(before) < self.setting.tokens:
            new = token(w, before, log.begin)
            series.append(("TOK", own, len(before), new, fed))
            before = (*before, new)
        series.append(("END", own, len(before)))
        for count in range(len(series) + 1):
            yield _append(state, w, series[:count])

    def _arrivals(self, state: State, w: int) -> Iterator[State]:
        first, rest = state.flights[w][0], state.flights[w][1:]
        yield from self._lands(state._replace(flights=_put(state.flights, w, rest)), w, first)
        if state.losses:
            yield state._replace(flights=_put(state.flights, w, rest), losses=state.losses - 1)
        if state.doubles:  # a copy stays in flight, to arrive at any later moment
            for at in range(len(rest) + 1):
                again = _put(state.flights, w, (*rest[:at], first, *rest[at:]))
                yield from self._lands(
                    state._replace(flights=again, doubles=state.doubles - 1), w, first
                )

    def _lands(self, state: State, w: int, message: Message) -> Iterator[State]:
        log, claimed = self.arrive(state.log, message)
        worker, landed = state.workers[w], state._replace(log=log)
        if message[0] == "CLAIM" and worker.waiting == message[1] and not log.done:
            landed = _with(
                landed, w, worker._replace(waiting=None)
            )  # W3: it sees its own claim, and what was accepted before it
            # An owner of another model wrote tokens in the meantime (log rule §25).
            other = bool(log.ids) and log.model != self.model(w)
            if claimed and not (other and self.own_model):
                yield from map(self._settled, self._generates(landed, w, message[1], log))
                return
        yield self._settled(landed)

    def _settled(self, state: State) -> State:
        """Without what can no longer make a difference."""
        if state.log.done:  # workers write nothing more
            state = state._replace(workers=(Worker(),) * len(state.workers))
        if not self.prune:
            return state
        coming = {
            message[1] for flight in state.flights for message in flight if message[0] == "CLAIM"
        } | {state.log.owner}
        hopeless = {
            message
            for flight in state.flights
            for message in flight
            if state.log.done or _hopeless(message, coming)
        }
        if not hopeless:
            return state
        for message in hopeless:
            assert self.arrive(state.log, message)[0] == state.log, message
        lost = {message[1] for message in hopeless if message[0] == "CLAIM"}
        return state._replace(
            flights=tuple(
                tuple(message for message in flight if message not in hopeless)
                for flight in state.flights
            ),
            workers=tuple(
                worker._replace(waiting=None) if worker.waiting in lost else worker
                for worker in state.workers
            ),
        )

    def _arrive(self, log: Log, message: Message) -> tuple[Log, bool]:
        """Apply the record to the real fold in the state `log`; the second value: whether it was a
        claim that counted."""
        text, count, last = _view(log)
        state = self.fold_class(
            retain_ids=True,
            owner=log.owner,
            next=len(log.ids),
            ids=list(log.ids),
            phase=_phase(log),
            text_length=len(text),
            mark_count=count,
            last_mark=last,
            model=(str(log.model), "", ""),
            former=[fold.Former(each) for each in log.former],
        )
        if log.done and log.owner is None:
            state.cancelled_by[compare.OWNER] = _CANCELLED
        record = _record(message)
        outcome = state.apply(record, 0)
        after = Log(
            state.owner,
            tuple(state.ids),
            state.phase is fold.Phase.DONE,
            int(state.model[0]),
            tuple(each.ids for each in state.former),
        )
        self.outcomes[compare.word(outcome)] += 1
        self._check(log, after, record, outcome)
        self._check_view(after, state)
        claimed = isinstance(outcome, fold.Claimed)
        self.takeovers += claimed and bool(log.ids)
        self.continued += len(after.former) > len(log.former)
        return after, claimed

    def _check_view(self, after: Log, state: fold.Fold) -> None:
        text, count, last = _view(after)
        found = (state.text_length, state.mark_count, state.last_mark)
        if found != (len(text), count, last):
            raise Violation(f"{found} is not the view of {after.ids}")

    def _check(
        self, before: Log, after: Log, record: records.TokenRecord, outcome: fold.Outcome
    ) -> None:
        if after.ids[: len(before.ids)] != before.ids:
            raise Violation(f"taken back: {before.ids} became {after.ids}")
        if before.done and not isinstance(outcome, fold.Ignored):
            raise Violation(f"after the end: {outcome}")
        if isinstance(outcome, fold.Ignored) and after != before:
            raise Violation(f"an ignored record had an effect: {record}")
        prefix = before.ids
        for id_ in after.ids[len(before.ids) :]:
            able = [w for w in range(self.setting.workers) if self.model(w) == after.model]
            if id_ not in {token(w, prefix, after.begin) for w in able}:
                raise Violation(f"token {id_} was not generated from {prefix}")
            prefix = (*prefix, id_)
        if (
            isinstance(outcome, fold.Ended)
            and isinstance(record, records.End)
            and len(after.ids) != self.setting.tokens
        ):
            raise Violation(f"ended after {len(after.ids)} tokens")


def _view(log: Log) -> tuple[str, int, records.Mark | None]:
    """Text, number of marks, and the last mark of the present segment. Each segment has a parser of
    its own; what one withheld at its end is never shown."""
    text, count, last = "", 0, None
    for begin, end in itertools.pairwise((0, *log.former, len(log.ids))):
        shown, marks = compare.view(log.ids[begin:end])
        last = None
        if marks:
            at, ids = len(text) + marks[-1].at, begin + marks[-1].ids
            last = msgspec.structs.replace(marks[-1], at=at, ids=ids)
        text, count = text + shown, count + len(marks)
    return text, count, last


_CANCELLED = fold.Ended("cancelled", "cancelled", "", records.Usage(), None, 0)


@contextmanager
def hash_switched_off() -> Iterator[None]:
    with mock.patch.object(fold, "roll", lambda h, ids: h):
        yield


def _phase(log: Log) -> fold.Phase:
    if log.done:
        return fold.Phase.DONE
    return fold.Phase.NEW if log.owner is None else fold.Phase.LIVE


def _put(values: tuple[Any, ...], at: int, value: object) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _with(state: State, w: int, worker: Worker) -> State:
    return state._replace(workers=_put(state.workers, w, worker))


def _append(state: State, w: int, messages: list[Message]) -> State:
    return state._replace(flights=_put(state.flights, w, (*state.flights[w], *messages)))


def _hopeless(message: Message, coming: set[str | None]) -> bool:
    """Whether it is ignored whenever it arrives; `coming` are the owner and all tokens that may
    become it."""
    named = message[2] if message[0] == "CLAIM" else message[1]  # whom it must find as owner
    return named not in coming


@functools.cache
def _record(message: Message) -> records.TokenRecord:
    """The record that a message in flight stands for."""
    match message:
        case ("CLAIM", own, prev, model, continues):
            return compare.claim(own, prev, model=str(model), continues=continues)
        case ("TOK", own, seq, id_, fed):
            text, marks = compare.growth(_prefixes[id_][fed:], [id_])
            return records.Tok(compare.RID, own, seq, [id_], text, fold.H0, marks=marks)
        case ("END", own, seq):
            return records.End(compare.RID, own, seq, "stop", fold.H0)
        case ("CANCEL",):
            return compare.cancel()
    raise AssertionError(message)
