"""Which response may use the engine next.

At most `capacity` responses run at once. Responses that began elsewhere go before all others,
interactive requests before batch requests, and requests of one class in the order of
`tailrace.fair_queue`: by the tokens of each principal. While another principal waits, one principal
has at most its share of the slots (`worker.queue.shares`): principals with less go first. While
batch requests wait, they get at least their share of all tokens, so that interactive requests
cannot starve them.

A running response can be pausable: it is preempted, releases its slot and queues again. A batch
response is preempted for an interactive request. A response of a principal with more than its share
is preempted for a request of a principal with less, of the same or a better class. A batch response
that got its slot as a part of the share of batch requests is not preempted.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.fair_queue import NOBODY, FairQueue, Flow, tenant_of
from tailrace.protocol import topics
from worker.queue.demand import Demand
from worker.queue.shares import Shares

MAX_HOLDS: Final = 10_000
# A response holds a slot for this time before it is preempted for another principal: each
# preemption costs a claim, and a part of its prompt may have left the engine's cache. The
# longest-running ones are preempted first, so requests rarely wait for this time.
MIN_RUN_S: Final = 1.0

STARTED: Final = -1
"""Rank of a response that another owner began: its reader waits in the middle of the text."""
BATCH: Final = topics.CLASSES.index("batch")


class Turn(asyncio.Future[None]):
    """A request's turn; done when its slot is granted.

    Attributes:
        rank: class of the request, 0 first.
        flow: whose request it is.
        cost: tokens that it may use.
        charge: tokens that it is expected to use, by which the order is decided
            (`worker.queue.demand`).
        rid: id of the response.
        batch: its request is of the class batch, whatever its rank.
        pausable: its holder can release the slot before the response has ended.
        preempt: makes the holder release the slot soon; None while it cannot, and once it was
            called.
        shared: it got its slot before waiting requests of a better class.
        again: its response had a slot before and was preempted.
        since: when it got its slot (monotonic seconds).
    """

    def __init__(
        self,
        rank: int,
        flow: Flow,
        cost: float,
        rid: str,
        *,
        batch: bool,
        pausable: bool,
        again: bool,
    ) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.rank = rank
        self.batch = batch
        self.flow = flow
        self.cost = cost
        self.charge = cost
        self.rid = rid
        self.pausable = pausable
        self.preempt: Callable[[], None] | None = None
        self.shared = False
        self.again = again
        self.since = 0.0


class _Parts(NamedTuple):
    """How long a response held slots, in seconds, and the tokens it used in that time."""

    seconds: float
    tokens: float


class Slots:
    """A pool of slots.

    Attributes:
        capacity: number of slots.
        bound: slots that may be in use now. Slots in use above it are not revoked.
        running: slots in use.
        running_cost: the cost of their requests.
        ended, ended_cost: requests that used a slot and have ended, and their cost.
        holds: for how many seconds released slots were held, the last MAX_HOLDS; `Load.measure`
            clears them.
        batch_share: part of all tokens that batch requests get at least while they wait.
        demand: how many tokens requests are expected to use.
        _share: most slots of one principal while another one waits.
        _shares: the slots that each principal may have that holds one or waits.
        _limit: most slots of one principal at any time.
        _batch_credit: tokens that waiting batch requests may use before others, for their share;
            below 0 after a request that used more. 0 while none waits.
        _in_use: slots in use by principal.
        _running: turns that hold a slot.
        _pausable: turns of pausable responses that hold a slot, the oldest first; interactive
            ones and batch ones.
        _preempting: those of them that were asked to release their slots.
        _timer: next scan for responses to preempt; None unless one had run for too short a time.
        _past_parts: former holds of paused responses, by id, the last MAX_HOLDS.
        _paused_turns: waiting turns of paused responses.
        _waiting: waiting turns, by rank, by their charges.
        _waiting_costs: their costs, by rank.
    """

    def __init__(
        self,
        capacity: int,
        *,
        share: float = 1.0,
        limit: float = 1.0,
        batch_share: float = 0.0,
        weight: Callable[[str], float] = lambda _tenant: 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`share` and `limit` are parts of the capacity, of one principal; `batch_share` is that
        of all batch requests, below 1; `weight` is that of a tenant."""
        self.capacity = self.bound = capacity
        self.running = 0
        self.running_cost = 0.0
        self.ended = 0
        self.ended_cost = 0.0
        self.holds: deque[float] = deque(maxlen=MAX_HOLDS)
        self._monotonic = monotonic
        self._share = max(1, int(capacity * min(share, limit)))
        self._limit = max(1, int(capacity * limit))
        self.batch_share = batch_share
        self._batch_credit = 0.0
        self._weight = weight
        self._shares = Shares(weight)
        self._in_use: Counter[Flow] = Counter()
        self._running: set[Turn] = set()
        self._pausable: tuple[dict[Turn, None], dict[Turn, None]] = ({}, {})
        self._preempting: set[Turn] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._past_parts: dict[str, _Parts] = {}
        self._paused_turns: set[Turn] = set()
        self._waiting: dict[int, FairQueue[Turn]] = {}
        self._waiting_costs: dict[int, float] = defaultdict(float)
        self.demand = Demand()

    @property
    def queued(self) -> int:
        """Number of requests that wait for a slot."""
        return sum(map(len, self._waiting.values()))

    @property
    def request_totals(self) -> tuple[float, float]:
        """How many requests have started here, and their cost. One that has not ended counts half,
        because on average it is half done."""
        paused_cost = sum(turn.cost for turn in self._paused_turns)
        return (
            self.ended + (self.running + len(self._paused_turns)) / 2,
            self.ended_cost + (self.running_cost + paused_cost) / 2,
        )

    @property
    def ages(self) -> list[float]:
        """For how many seconds each running response has held a slot."""
        return [self._parts(turn).seconds for turn in self._running]

    @property
    def paused_ages(self) -> list[float]:
        """For how many seconds each waiting paused response has held a slot."""
        return [self._before(turn).seconds for turn in self._paused_turns]

    def waiting_cost(self, rank: int) -> float:
        """The cost of the waiting requests of a rank, in tokens."""
        return self._waiting_costs[rank] if self._waiting.get(rank) else 0.0

    def waiting_charge(self, rank: int) -> float:
        """The charges of the waiting requests of a rank, in tokens."""
        return self._waiting[rank].cost if rank in self._waiting else 0.0

    def charge_ratio(self, rank: int, aside: Mapping[str, float], part: float) -> float:
        """Tokens that the waiting requests of a rank will generate, divided by their charges, which
        include prompts. Where none waits, the ratio of all requests.

        Args:
            aside: the cost of requests that wait elsewhere, by principal.
            part: the part of their cost that requests generate.
        """
        charges = sum(self.demand.estimate(name, cost) for name, cost in aside.items())
        charges += self.waiting_charge(rank)
        cost = self.waiting_cost(rank) + sum(aside.values())
        if not (cost > 0 and charges > 0):  # sums of an empty queue are 0 but for rounding
            return part / self.demand.part
        return part * cost / charges

    def work_before(
        self, rank: int, aside: Mapping[str, float], part: float, most: int, asks: float
    ) -> tuple[float, dict[str, float]]:
        """The work before a new request of a rank, in tokens that will be generated: before one of
        a new tenant, and by name of the busiest `most` principals. `asks`: as of
        `FairQueue.ahead`.

        Args:
            aside, part: as of `charge_ratio`.
        """
        ratio = self.charge_ratio(rank, aside, part)
        charges = {name: self.demand.estimate(name, tokens) for name, tokens in aside.items()}
        new, by_name = self._queue(rank).ahead(most, charges, asks)
        return ratio * new, {name: ratio * cost for name, cost in by_name.items()}

    @property
    def interactive(self) -> float:
        """The part of the slots in which interactive requests run."""
        return sum(turn.rank < BATCH for turn in self._running) / max(1, self.bound)

    @property
    def preemptible(self) -> tuple[int, float]:
        """How many running responses can be preempted for requests of a better class, now or soon,
        and their cost."""
        turns = [turn for turn in self._pausable[True] if not turn.shared]
        return len(turns), sum(turn.cost for turn in turns)

    @property
    def newcomer_slots(self) -> int:
        """Slots that principals above their shares would release for a new principal."""
        pausable = itertools.chain(*self._pausable)
        turns = Counter(turn.flow for turn in pausable if not turn.shared)
        return sum(
            max(0, min(count, self._in_use[flow] - self._share_of(flow, new=1)))
            for flow, count in turns.items()
        )

    def order(
        self, deferred: Callable[[int], Mapping[str, Iterable[tuple[str, float]]]]
    ) -> Iterator[tuple[str, Flow, float, int]]:
        """Ids, flows, charges and ranks of the waiting requests, in the order in which they get
        their slots without further arrivals. The limit of slots of one principal is ignored.

        Args:
            deferred: gives the requests of a rank that wait elsewhere, after those of the same
                principal, and their costs.
        """
        ranks = {
            rank: self._waiting[rank].order(_identify, self._charges(deferred(rank)))
            for rank in sorted(self._waiting)
        }
        batch, credit = ranks.pop(BATCH, iter(())), self._batch_credit
        waiting = self._waiting.get(BATCH)
        each = waiting.cost / len(waiting) if waiting else math.inf
        for rank, others in ranks.items():
            for (rid, flow), cost in others:
                while rank != STARTED and credit >= each:
                    if (entry := next(batch, None)) is None:
                        break
                    yield *entry[0], entry[1], BATCH
                    credit -= entry[1]
                yield rid, flow, cost, rank
                credit += cost * self.batch_share / (1 - self.batch_share)
        for (rid, flow), cost in batch:
            yield rid, flow, cost, BATCH

    def _charges(
        self, deferred: Mapping[str, Iterable[tuple[str, float]]]
    ) -> dict[str, Iterator[tuple[tuple[str, Flow], float]]]:
        def charges(principal: str) -> Iterator[tuple[tuple[str, Flow], float]]:
            flow = Flow(tenant_of(principal), principal)
            for rid, cost in deferred[principal]:
                yield (rid, flow), self.demand.estimate(principal, cost)

        return {principal: charges(principal) for principal in deferred}

    def acquire(
        self,
        rank: int,
        flow: Flow = NOBODY,
        cost: float = 1.0,
        rid: str = "",
        *,
        first: bool = False,
        batch: bool = False,
        pausable: bool = False,
        again: bool = False,
    ) -> Turn:
        """Queue for a slot, after the others of the flow and rank or `first` of them. The turn is
        done when the slot is granted; then `release` the slot. `withdraw` the turn to give up.

        Args:
            batch: the request is of the class batch; implied by that rank.
            pausable: `allow_preemption` will be called.
            again: the response had a slot before and was preempted.
        """
        batch = batch or rank == BATCH
        turn = Turn(rank, flow, cost, rid, batch=batch, pausable=pausable, again=again)
        turn.charge = self.demand.estimate(flow.principal, cost)
        if again:
            self._paused_turns.add(turn)
        self._shares.add(flow)
        self._queue(rank).push(flow, turn, turn.charge, first=first)
        self._waiting_costs[rank] += cost
        self._admit()
        self._preempt()
        return turn

    def allow_preemption(self, turn: Turn, preempt: Callable[[], None]) -> None:
        """The holder of a slot can release it from now on. `preempt` is called at most once,
        possibly at once, and only for pausable responses."""
        if turn in self._pausable[turn.batch] and turn not in self._preempting:
            turn.preempt = preempt
            self._preempt()

    def restrict(self, bound: int) -> None:
        """Let at most `bound` slots be in use from now on."""
        self.bound = bound
        self._admit()

    def release(self, turn: Turn, tokens: float | None = None, *, paused: bool = False) -> None:
        """Release the slot of a turn.

        Args:
            tokens: that it used, where that is known.
            paused: its response will continue later.
        """
        self.running -= 1
        self._running.discard(turn)
        self._pausable[turn.batch].pop(turn, None)
        self._preempting.discard(turn)
        self.running_cost = self.running_cost - turn.cost if self.running else 0.0
        if tokens:
            self._note_parts(turn, tokens, paused=paused)
        self._in_use[turn.flow] -= 1
        if not self._in_use[turn.flow]:
            del self._in_use[turn.flow]
        if tokens is not None:
            more = tokens - turn.charge
            charge = more if paused or not tokens else self.demand.charge(turn.flow.principal, more)
            self._queue(turn.rank).settle(turn.flow, charge)
        self._shares.remove(turn.flow)
        self._admit()
        self._preempt()

    def _note_parts(self, turn: Turn, tokens: float, *, paused: bool) -> None:
        """A response releases its slot after these tokens. All its parts count as one."""
        parts = self._parts(turn, tokens)
        self._past_parts.pop(turn.rid, None)
        if not paused:
            self.ended += 1
            self.ended_cost += turn.cost
            self.holds.append(parts.seconds)
            self.demand.add(turn.flow.principal, turn.cost, parts.tokens)
            return
        self._past_parts[turn.rid] = parts
        if len(self._past_parts) > MAX_HOLDS:
            del self._past_parts[next(iter(self._past_parts))]

    def _parts(self, turn: Turn, tokens: float = 0.0) -> _Parts:
        """With the part that holds its slot now and used these tokens."""
        before = self._before(turn)
        return _Parts(before.seconds + self._monotonic() - turn.since, before.tokens + tokens)

    def _before(self, turn: Turn) -> _Parts:
        return self._past_parts.get(turn.rid, _Parts(0.0, 0.0))

    def withdraw(self, turn: Turn) -> None:
        """Give up waiting; a slot that was granted already is released."""
        if self._queue(turn.rank).remove(turn.flow, turn):
            self._paused_turns.discard(turn)
            self._waiting_costs[turn.rank] -= turn.cost
            self._shares.remove(turn.flow)
            turn.cancel()
        elif turn.done() and not turn.cancelled():
            self.release(turn, tokens=0)

    def _queue(self, rank: int) -> FairQueue[Turn]:
        queue = self._waiting.get(rank)
        if queue is None:
            queue = self._waiting[rank] = FairQueue(self._weight)
        return queue

    def _admit(self) -> None:
        while self.running < min(self.capacity, self.bound) and (turn := self._next()) is not None:
            self.running += 1
            self._running.add(turn)
            self._paused_turns.discard(turn)
            turn.since = self._monotonic()
            self.running_cost += turn.cost
            self._in_use[turn.flow] += 1
            self._account(turn)
            if turn.pausable:
                self._pausable[turn.batch][turn] = None
            turn.set_result(None)

    def _preempt(self) -> None:
        """Preempt responses: batch ones for waiting requests of a better class, and those of
        principals above their share for principals below it."""
        if self.running != min(self.capacity, self.bound):
            return  # a slot is free, or a release would free none
        limit = self._below(self._limit)
        better = sum(
            queue.count(None if rank == STARTED else limit)
            for rank, queue in self._waiting.items()
            if rank < BATCH
        )
        interactive, batch = self._pausable
        self._preempt_up_to(better, batch, lambda _turn: True)
        if self._shares.several and (over := self._over_share()):
            gives = self._may_preempt(over)
            self._preempt_up_to(self._shortfall(STARTED, 0), interactive, gives)
            self._preempt_up_to(better + self._shortfall(BATCH), batch, gives)

    def _preempt_up_to(
        self, most: int, turns: Collection[Turn], which: Callable[[Turn], bool]
    ) -> None:
        """Preempt until `most` slots become free, the oldest first: a long answer will hold its
        slot for longest."""
        for turn in list(turns) if len(self._preempting) < most else ():
            if turn.preempt is not None and not turn.shared and which(turn):
                preempt, turn.preempt = turn.preempt, None
                self._preempting.add(turn)
                preempt()
                if len(self._preempting) >= most:
                    return

    def _over_share(self) -> dict[Flow, int]:
        """Slots of each principal above its share, without those that are being released."""
        preempting = Counter(turn.flow for turn in self._preempting)
        return {
            flow: more
            for flow, count in self._in_use.items()
            if count > 1 and (more := count - preempting[flow] - self._share_of(flow)) > 0
        }

    def _shortfall(self, *ranks: int) -> int:
        """Waiting requests of these ranks of principals below their share, at most up to it."""
        waiting = Counter[Flow]()
        for rank in ranks:
            waiting.update(self._queue(rank).flows())
        return sum(
            max(0, min(count, self._share_of(flow) - self._in_use[flow]))
            for flow, count in waiting.items()
        )

    def _may_preempt(self, over: dict[Flow, int]) -> Callable[[Turn], bool]:
        """Test whether a turn may be preempted for its principal's excess; counts it in `over`."""
        now = self._monotonic()

        def gives(turn: Turn) -> bool:
            if not over.get(turn.flow):
                return False
            early_s = turn.since + MIN_RUN_S - now
            if early_s > 0:
                self._preempt_in(early_s)
                return False
            over[turn.flow] -= 1
            return True

        return gives

    def _preempt_in(self, seconds: float) -> None:
        def scan() -> None:
            self._timer = None
            self._preempt()

        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, scan)

    def _share_of(self, flow: Flow, new: int = 0) -> int:
        slots = min(self.capacity, self.bound)
        return min(self._share, self._shares.slots_for(flow, slots, new))

    def _next(self) -> Turn | None:
        """The next turn: in each class first among those below their share, then among all."""
        for rank, eligible in self._lines():
            entry = self._waiting[rank].pop(eligible) if rank in self._waiting else None
            if entry is not None:
                self._waiting_costs[rank] -= entry[1].cost
                return entry[1]
        return None

    def _lines(self) -> Iterator[tuple[int, Callable[[Flow], bool] | None]]:
        """The ranks, and which of their flows, in the order in which they are served now. Responses
        that began elsewhere go before a class, except before its flows below their share."""
        ranks = [rank for rank in self._ranks() if rank != STARTED] or [STARTED]
        for most in dict.fromkeys((self._share, self._limit)):
            for rank in ranks:
                if self._shares.several:
                    yield STARTED, self._below_share
                    yield rank, self._below_share
                yield STARTED, None
                yield rank, None if rank == STARTED else self._below(most)

    def _below_share(self, flow: Flow) -> bool:
        """Whether a principal is below its share."""
        in_use = self._in_use.get(flow, 0)
        return not in_use or in_use < self._share_of(flow)  # the share is one slot at least

    def _ranks(self) -> list[int]:
        """The ranks in the order in which they are served now."""
        ranks = sorted(self._waiting)
        waiting = self._waiting.get(BATCH)
        if waiting and self._batch_credit * len(waiting) >= waiting.cost > 0:  # for one of them
            ranks.remove(BATCH)
            ranks.insert(ranks[0] == STARTED, BATCH)
        return ranks

    def _account(self, turn: Turn) -> None:
        """A slot was granted: waiting batch requests get credit for their share of it."""
        if turn.rank == BATCH:
            overtook = any(queue for rank, queue in self._waiting.items() if rank < BATCH)
            turn.shared = overtook
            credit = self._batch_credit - turn.charge
            self._batch_credit = credit if overtook else max(0.0, credit)
        elif self._waiting.get(BATCH):
            self._batch_credit += turn.charge * self.batch_share / (1 - self.batch_share)
        if not self._waiting.get(BATCH):
            self._batch_credit = 0.0

    def _below(self, most: int) -> Callable[[Flow], bool] | None:
        if most >= self.capacity:
            return None
        return lambda flow: self._in_use[flow] < most


def _identify(turn: Turn) -> tuple[str, Flow]:
    return turn.rid, turn.flow


class HeldSlots:
    """The slots that one response holds, at most one of each pool.

    Attributes:
        _turns: the turn by which a slot is held, by pool; empty after `release`.
    """

    def __init__(self) -> None:
        self._turns: dict[Slots, Turn] = {}

    def __contains__(self, pool: Slots) -> bool:
        return pool in self._turns

    def turn(self, pool: Slots) -> Turn | None:
        """The turn by which a slot of the pool is held."""
        return self._turns.get(pool)

    async def acquire(
        self, pool: Slots, turn: Turn, wait: Callable[[Turn], Awaitable[None]]
    ) -> None:
        """Hold the slot of `turn`, a turn of `pool`. `wait` returns when the turn is done, or when
        the slot is no longer needed; then the turn is withdrawn."""
        try:
            await wait(turn)
        except asyncio.CancelledError:
            pool.withdraw(turn)
            raise
        if turn.done():
            self._turns[pool] = turn
        else:
            pool.withdraw(turn)

    def release(self, tokens: float | None = None, *, paused: bool = False) -> None:
        """Release all slots. `tokens`, `paused`: as of `Slots.release`."""
        while self._turns:
            pool, turn = self._turns.popitem()
            pool.release(turn, tokens, paused=paused)
