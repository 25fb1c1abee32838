"""`bench waits` without servers, in virtual time: waits as they are told, beside true ones.

    python -m bench.waits_simulated [--seeds N]

In the loads of `bench waits` nothing is refused, so queues grow for as long as they last. In two
more loads here, as in `bench.overload`, what would start after its deadline is refused, and what
has not started by then expires, so that queues stay as they are.

The pool is `bench.simulated_pool`, in which the parts that judge are the real ones. So a change of
how waits are told is judged in minutes, by more requests than `bench waits` has in an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from bench import measure, places, places_figures, waits
from bench.simulated_pool import PACE_S, Request, World
from gateway import admission
from tailrace.fair_queue import Flow
from tailrace.protocol import topics

SECONDS: Final = 25.0
REST_S: Final = 30.0  # after ten users have warmed workers up, before one of them asks alone
ONE_USER: Final = "one user at twice the capacity"
# Of the loads with deadlines: how much of the capacity, how long they last before waits are probed
# and while they are, and how often that is. A probe waits for as long as it takes.
OVERLOADS: Final = (2.0, 5.0)
SETTLE_S, STEADY_S = 30.0, 150.0
DEADLINE_S: Final[dict[topics.PriorityClass, float]] = {"interactive": 5.0, "batch": 20.0}
STEADY_PROBE_S: Final[dict[topics.PriorityClass, float]] = {"interactive": 2.0, "batch": 10.0}


@dataclass(slots=True)
class Arrivals:
    """A load of several classes by several users, with a probe now and then.

    Attributes:
        parts: of the capacity, by class.
        even: requests come at equal distances.
        _counted: those that were asked for SECONDS, after `places.SETTLE_S`.
    """

    world: World
    parts: dict[topics.PriorityClass, float]
    users: Sequence[Flow]
    probe_s: float
    even: bool = False
    _began: float = field(init=False)
    _counted: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.world.now
        self.world.requests.clear()

    def run(self) -> list[Request]:
        """What counts. The load goes on while any of that waits."""
        world = self.world
        for priority, part in self.parts.items():
            if part:
                self._arrive(priority, part * waits.CAPACITY / waits.ANSWERS.mean)
                world.after(places.SETTLE_S, partial(self._probe, priority))
        world.run(lambda: self._goes_on or not all(each.done for each in world.requests))
        return self._counted

    @property
    def _passed(self) -> float:
        return self.world.now - self._began - places.SETTLE_S

    @property
    def _counts(self) -> bool:
        return 0 <= self._passed < SECONDS

    @property
    def _goes_on(self) -> bool:
        waits_on = any(each.begun is None for each in self._counted)
        return self._passed < SECONDS or (waits_on and self._passed < places.LONGEST * SECONDS)

    def _arrive(self, priority: topics.PriorityClass, per_s: float) -> None:
        if self._goes_on:
            world = self.world
            tokens = waits.ANSWERS.drawn(world.drawn)
            asked = world.ask(priority, world.drawn.choice(self.users), tokens)
            if self._counts:
                self._counted.append(asked)
            pause_s = 1 / per_s if self.even else world.drawn.expovariate(per_s)
            world.after(pause_s, lambda: self._arrive(priority, per_s))

    def _probe(self, priority: topics.PriorityClass) -> None:
        if self._counts:
            world, flow = self.world, self.world.drawn.choice(self.users)
            told_s = world.told_s(priority, flow)
            if told_s:
                self._counted.append(world.ask(priority, flow, waits.SHORT, told_s))
            world.after(self.probe_s, lambda: self._probe(priority))


@dataclass(slots=True)
class Steady:
    """More of both classes than can be done, for so long that queues do not grow any more.

    Attributes:
        part: of the capacity, seven tenths of it interactive.
        refused, expired: numbers of requests of each class, while waits are probed.
    """

    world: World
    part: float
    users: Sequence[Flow]
    asked: Counter[topics.PriorityClass] = field(default_factory=Counter)
    refused: Counter[topics.PriorityClass] = field(default_factory=Counter)
    expired: Counter[topics.PriorityClass] = field(default_factory=Counter)
    _began: float = field(init=False)
    _probes: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._began = self.world.now
        self.world.requests.clear()

    def run(self) -> list[Request]:
        """Returns the probes. The load lasts until the last of them has begun."""
        parts: dict[topics.PriorityClass, float] = {"interactive": 0.7, "batch": 0.3}
        for priority, part in parts.items():
            self._arrive(priority, part * self.part * waits.CAPACITY / waits.ANSWERS.mean)
            self._probe(priority)
        self.world.run(lambda: self._goes_on or not all(e.done for e in self.world.requests))
        return self._probes

    @property
    def _passed(self) -> float:
        return self.world.now - self._began

    @property
    def _goes_on(self) -> bool:
        passed, most = self._passed, places.LONGEST * (SETTLE_S + STEADY_S)
        waits_on = any(probe.begun is None for probe in self._probes)
        return passed < SETTLE_S + STEADY_S or (waits_on and passed < most)

    def _arrive(self, priority: topics.PriorityClass, per_s: float) -> None:
        if not self._goes_on:
            return
        world, deadline_s = self.world, DEADLINE_S[priority]
        flow, counts = world.drawn.choice(self.users), self._passed >= SETTLE_S
        tokens, told_s = waits.ANSWERS.drawn(world.drawn), world.told_s(priority, flow)
        self.asked[priority] += counts
        if told_s is not None and admission.late(told_s, deadline_s):
            self.refused[priority] += counts
            world.turn_away(priority, flow)
        else:
            asked = world.ask(priority, flow, tokens)

            def too_late() -> None:
                if asked.begun is None:
                    for worker in world.workers:
                        worker.expire(asked)
                    self.expired[priority] += counts

            world.after(deadline_s, too_late)
        world.after(world.drawn.expovariate(per_s), lambda: self._arrive(priority, per_s))

    def _probe(self, priority: topics.PriorityClass) -> None:
        if self._passed >= SETTLE_S + STEADY_S:
            return
        world, flow = self.world, self.world.drawn.choice(self.users)
        told_s = world.told_s(priority, flow)
        if self._passed >= SETTLE_S and told_s:
            self._probes.append(world.ask(priority, flow, waits.SHORT, told_s))
        world.after(STEADY_PROBE_S[priority], lambda: self._probe(priority))


def flows(count: int) -> list[Flow]:
    """So many users, each of a tenant of its own."""
    return [Flow(f"user-{number}", f"user-{number}") for number in range(count)]


def warm(world: World) -> None:
    """See `places.warm`."""
    users, clients = flows(places.USERS), 2 * waits.WORKERS * waits.PLACES

    def ask(number: int, turn: int) -> None:
        tokens = waits.ANSWERS.spread(number + clients * turn)
        asked = world.ask("interactive", users[number % len(users)], tokens)

        def look() -> None:
            if not asked.done:
                world.after(PACE_S, look)
            elif turn + 1 < places.WARM_EACH:
                ask(number, turn + 1)

        look()

    for number in range(clients):
        ask(number, 0)
    count = clients * places.WARM_EACH
    world.run(lambda: len(world.requests) < count or not all(e.done for e in world.requests))


def ratios(seed: int) -> Iterator[tuple[str, float]]:
    """Load, and told over true wait, of waits that count in `bench waits`."""
    world = World(seed)
    warm(world)
    over = world.now + REST_S
    world.run(lambda: world.now < over)
    one = Arrivals(world, {"interactive": 2.0}, flows(places.USERS + 1)[-1:], waits.PROBE_S, True)
    for what, told_s, true_s in _told(one.run()):
        if true_s >= waits.LEAST_WAIT_S:
            yield f"{ONE_USER}: {what}", told_s / true_s
    for case in places.CASES:
        parts: dict[topics.PriorityClass, float] = {
            "interactive": case.interactive,
            "batch": case.batch,
        }
        load = Arrivals(world, parts, flows(places.USERS), places.PROBE_S)
        for what, told_s, true_s in _told(load.run()):
            if max(told_s, true_s) >= places_figures.LEAST_S:
                yield f"{case.name}: {what}", told_s / max(true_s, 0.001)


def steady(seed: int) -> Iterator[tuple[Steady, list[tuple[str, float]]]]:
    """Loads with deadlines, each with the same as of `ratios`."""
    world = World(seed)
    warm(world)
    for part in OVERLOADS:
        load = Steady(world, part, flows(places.USERS))
        yield (
            load,
            [
                (what, told_s / max(true_s, 0.001))
                for what, told_s, true_s in _told(load.run())
                if max(told_s, true_s) >= places_figures.LEAST_S
            ],
        )


def _told(asked: Sequence[Request]) -> Iterator[tuple[str, float, float]]:
    """What was told, in words, with the seconds that it says and that were true: of refusals, and
    the first of each request that waited."""
    for each in asked:
        assert each.begun is not None
        if each.told_s is not None:
            yield f"{each.priority} refusals", each.told_s, each.begun - each.asked
        for at, eta_s in each.etas[:1]:
            yield f"{each.priority} first etas", eta_s, each.begun - at


async def main() -> None:
    """Write a line for each load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="draws of each load (default: 6)")
    found: dict[str, list[float]] = defaultdict(list)
    asked, refused, expired = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(parser.parse_args().seeds):
        for name, ratio in ratios(seed):
            found[name].append(ratio)
        for load, of_load in steady(seed):
            name = f"x{load.part:.0f} with deadlines"
            for what, ratio in of_load:
                found[f"{name}: {what}"].append(ratio)
            for priority, count in load.asked.items():
                asked[f"{name}: {priority}"] += count
                refused[f"{name}: {priority}"] += load.refused[priority]
                expired[f"{name}: {priority}"] += load.expired[priority]
    for name, all_ratios in sorted(found.items()):
        within = sum(0.8 <= ratio <= 1.2 for ratio in all_ratios) / len(all_ratios)
        told = ", ".join(f"p{p} {measure.percentile(all_ratios, p):.2f}" for p in (10, 50, 90))
        sys.stdout.write(
            f"{name}, waits {len(all_ratios)}; told over true {told}; ±20 %: {within:.0%}\n"
        )
    for name, count in sorted(asked.items()):
        sys.stdout.write(
            f"{name} requests {count}, refused {refused[name] / count:.1%}, "
            f"expired {expired[name] / count:.1%}\n"
        )


if __name__ == "__main__":
    asyncio.run(main())  # turns are futures of a loop
