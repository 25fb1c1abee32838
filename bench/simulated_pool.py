"""A pool of workers in virtual time, for `bench.waits_simulated`.

The parts that judge are the real ones: a worker's slots and their order, what it measures and tells
(`worker.load`), and the gateways' backlog and placement. Simulated are the clock, the engines,
which make tokens at an even pace, and the time that a heartbeat takes. What is refused, workers are
told at once.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench import waits
from gateway import backlog, placement, pool_workers
from tailrace.fair_queue import Flow, waits_of
from tailrace.protocol import topics
from worker.heartbeat import BUSY_HEARTBEAT_S, HEARTBEAT_S
from worker.load import Load
from worker.queue_teller import TELL_S
from worker.read_ahead import Unserved
from worker.slots import BATCH, STARTED, Slots, Turn
from worker.told_waits import places_at
from worker.workload import Workload

PACE_S: Final = waits.PACE_MS / 1000
PROMPT: Final = 4  # tokens
APPEND_S: Final = 0.02
# Of a batch answer: until it can make way, and until it has; how long it pauses, and how often.
BEGIN_S, STOP_S, PAUSE_S, PAUSES = 0.1, 0.03, 10.0, 8
NOTHING: Final = [Unserved({}, 0) for _ in topics.CLASSES]


@dataclass(slots=True, eq=False)
class Request:
    """Times are virtual seconds.

    Attributes:
        left: tokens that it has still to make.
        told_s: the wait that one of its principal and class was told before; None for others.
        etas: when it was told that it begins in so many seconds.
        begun, since: when it got its first slot, and its last one.
    """

    priority: topics.PriorityClass
    flow: Flow
    left: float
    asked: float
    told_s: float | None = None
    etas: list[tuple[float, float]] = field(default_factory=list)
    begun: float | None = None
    since: float = 0.0
    pauses: int = 0
    done: bool = False
    turn: Turn | None = None

    @property
    def rank(self) -> int:
        return topics.CLASSES.index(self.priority)


class World:
    """A pool, its clients, and their time.

    Attributes:
        now: virtual seconds.
        requests: all that were asked in this load.
        beats: the heartbeats as a gateway last read them.
    """

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.drawn = random.Random(seed)
        self.requests: list[Request] = []
        self.workers = [Worker(self, number) for number in range(waits.WORKERS)]
        self.beats = [dict(worker.beat) for worker in self.workers]
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._turns = itertools.count()
        self._lately = backlog.Lately()
        self._on: Counter[int] = Counter()
        for worker in self.workers:
            self.after(self.drawn.random() * BUSY_HEARTBEAT_S, worker.tell)
            self.after(self.drawn.random() * TELL_S, worker.tell_places)
        self.after(BUSY_HEARTBEAT_S, self._read)

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it so many seconds from now."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), do))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Let time pass."""
        while goes_on():
            self.now, _, do = heapq.heappop(self._due)
            do()

    def _read(self) -> None:
        self.beats = [dict(worker.beat) for worker in self.workers]
        busy = backlog.of(self.beats).busy
        self.after(BUSY_HEARTBEAT_S if busy else HEARTBEAT_S, self._read)

    def told_s(self, priority: topics.PriorityClass, flow: Flow) -> float | None:
        """The wait that a refusal would tell now."""
        return backlog.of(self.beats).wait_s(self._new(priority, flow))

    def turn_away(self, priority: topics.PriorityClass, flow: Flow) -> None:
        """A request is refused, which the workers are told."""
        for worker in self.workers:
            worker.turned_away(topics.CLASSES.index(priority), flow)

    def _new(self, priority: topics.PriorityClass, flow: Flow) -> backlog.NewRequest:
        return backlog.NewRequest(priority, flow.principal, self._lately, self.now)

    def ask(
        self,
        priority: topics.PriorityClass,
        flow: Flow,
        tokens: int,
        told_s: float | None = None,
    ) -> Request:
        """One more request."""
        asked = Request(priority, flow, tokens, self.now, told_s)
        self.requests.append(asked)
        work, new = backlog.of(self.beats), self._new(priority, flow)
        each = work.each or waits.MOST
        seen = pool_workers.of(work, range(waits.WORKERS), new, each)
        chosen = placement.place(
            *(seen, range(waits.WORKERS), lambda partition: self._on[partition]),
            cached={},
            each=each,
            turn=next(self._turns),
        )
        self._lately.add(chosen.incarnation, flow.principal, priority, self.now)
        worker = self.workers[chosen.partition]
        self.after(APPEND_S, lambda: worker.queue(asked, asked.rank))
        return asked


class Worker:
    """One worker with its engine; its number is its partition.

    Attributes:
        beat: its last heartbeat.
    """

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._number = number
        self._slots = Slots(waits.PLACES, share=0.5, batch_share=0.1, monotonic=self._now)
        self._work = Workload()
        self._load = Load(self._work, self._now)
        self._waiting: list[Request] = []
        self._running: set[Request] = set()
        self._made = 0.0
        self._measured = 0.0
        self.beat = self._told()

    def _now(self) -> float:
        return self._world.now

    def _told(self) -> dict[str, Any]:
        return {
            "incarnation": str(self._number),
            "state": "ready",
            "partitions": [self._number],
            "capacity": waits.PLACES,
            "running": self._slots.running,
            "queued": self._slots.queued,
            **self._load.told(self._slots, NOTHING),
        }

    def tell(self) -> None:
        """Measure and tell, again and again."""
        now = self._now()
        if now - self._measured > HEARTBEAT_S - BUSY_HEARTBEAT_S / 2:
            made = self._made + sum((now - each.since) / PACE_S for each in self._running)
            self._load.measure(self._slots, int(made), now - self._measured)
            self._measured = now
        self.beat = self._told()
        pause_s = BUSY_HEARTBEAT_S if self._slots.queued else HEARTBEAT_S
        self._world.after(pause_s, self.tell)

    def turned_away(self, rank: int, flow: Flow) -> None:
        """A request was refused, which any of the workers could have got."""
        part = 1 / len(self._world.workers)
        for name in ("", waits_of(flow.principal)):
            self._slots.demand.turned_away(rank, name, part, part * (PROMPT + waits.MOST))

    def expire(self, asked: Request) -> None:
        """It has waited for too long."""
        if asked in self._waiting and asked.turn is not None:
            self._waiting.remove(asked)
            self._slots.withdraw(asked.turn)
            asked.done = True

    def tell_places(self) -> None:
        """Tell each request that waits when it will begin, again and again."""
        told, _ = places_at(self._slots, self._work, lambda _rank: {}, NOTHING)
        for asked in self._waiting:
            place = told.get(str(id(asked)))
            if place is not None and place.eta_s is not None and asked.begun is None:
                asked.etas.append((self._now(), place.eta_s))
        self._world.after(TELL_S, self.tell_places)

    def queue(self, asked: Request, rank: int) -> None:
        """It waits for a slot."""
        again = asked.pauses > 0
        asked.turn = self._slots.acquire(
            *(rank, asked.flow, PROMPT + waits.MOST, str(id(asked))),
            first=again,
            pausable=asked.rank == BATCH and asked.pauses < PAUSES,
            again=again,
        )
        self._waiting.append(asked)
        self._begin()

    def _begin(self) -> None:
        """Begin what has got its slot."""
        while begins := [each for each in self._waiting if each.turn and each.turn.done()]:
            for each in begins:
                self._waiting.remove(each)
                self._run(each)

    def _run(self, asked: Request) -> None:
        world, turn = self._world, asked.turn
        assert turn is not None
        asked.since = world.now
        asked.begun = world.now if asked.begun is None else asked.begun
        self._running.add(asked)
        world.after(asked.left * PACE_S, lambda: self._end(asked, turn))

        def make_way() -> None:
            world.after(STOP_S, lambda: self._pause(asked, turn))

        def may_make_way() -> None:
            if asked in self._running and asked.turn is turn:
                self._slots.may_make_way(turn, make_way)

        if turn.pausable:
            world.after(BEGIN_S, may_make_way)

    def _stop(self, asked: Request, turn: Turn, *, paused: bool = False) -> bool:
        """It gives its slot back, if it has it."""
        if asked not in self._running or asked.turn is not turn:
            return False
        made = (self._now() - asked.since) / PACE_S
        self._running.remove(asked)
        self._made += made
        asked.left -= made
        self._slots.release(turn, used=PROMPT + made, paused=paused)
        return True

    def _end(self, asked: Request, turn: Turn) -> None:
        if self._stop(asked, turn):
            asked.done = True
            self._begin()

    def _pause(self, asked: Request, turn: Turn) -> None:
        if not self._stop(asked, turn, paused=True):
            return
        asked.pauses += 1
        self._begin()
        self.queue(asked, BATCH)
        paused = asked.turn

        def over() -> None:
            if paused is not None and asked.turn is paused and not paused.done():
                self._slots.withdraw(paused)
                self._waiting.remove(asked)
                self.queue(asked, STARTED)

        self._world.after(PAUSE_S, over)
