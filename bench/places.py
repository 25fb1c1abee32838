"""Streamed requests of both classes that wait, and the estimate of its wait that each gets."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import httpx

from bench import load, places_figures, scripted, stacks
from bench.overload_figures import Group
from bench.places_figures import Estimate, Wait
from tailrace.local import dev_credentials

USERS: Final = 10
TIERS: Final[dict[Group, str]] = {"interactive": "auto", "batch": "flex"}
WARM_EACH: Final = 8
PROBE_S: Final = 0.5
# Requests in the first seconds of a load do not count: the arrival rate is not known yet.
SETTLE_S: Final = 10.0
# A load lasts at most this number of times longer than its counted part.
LONGEST: Final = 3.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of which a share is long. `most`: tokens that every request allows."""

    short: int
    long: int
    long_share: float
    most: int
    pace_ms: int

    @property
    def mean(self) -> float:
        return self.short + self.long_share * (self.long - self.short)

    def spread(self, number: int) -> int:
        """The tokens of one of many answers, of which the long ones are at equal distances."""
        every = round(1 / self.long_share)
        return self.long if number % every == every // 2 else self.short

    def draw(self, source: random.Random) -> int:
        """The tokens of one answer."""
        return self.long if source.random() < self.long_share else self.short


@dataclass(slots=True)
class Client:
    """Asks as one of many users.

    Attributes:
        finished: requests whose answer has ended, of those that count.
        _answers: answers to those that count, ended or not.
    """

    side: stacks.Side
    answers: Answers
    finished: list[Wait] = field(default_factory=list)
    _answers: list[load.Answer] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(2_000_000))
    _users: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.side.data is not None
        self._users = [
            {
                "authorization": "Bearer "
                + dev_credentials.issue(self.side.data, f"user-{number}", 3 * 3600)
            }
            for number in range(USERS)
        ]

    async def ask(
        self,
        group: Group,
        tokens: int,
        user: int,
        refusal_s: float | None = None,
        *,
        counts: bool = True,
    ) -> None:
        """One request, streamed to its end. Raises Failed."""
        body = {**self._body(group, tokens), "stream": True}
        answer = load.Answer(time.perf_counter())
        if counts:
            self._answers.append(answer)
        await load.stream(
            *(self.side.url, "POST", "/v1/responses", self._users[user], body, answer.due),
            answer=answer,
        )
        if answer.error:
            raise load.RequestFailed(answer.error)
        if not counts:
            return
        estimates = [
            Estimate(at, place["position"], place.get("eta_s"), "at_least" in place)
            for at, place in answer.places
        ]
        self.finished.append(Wait(group, answer.due, answer.started, estimates, refusal_s))

    @property
    def waits(self) -> bool:
        """Whether a request that counts waits for a worker."""
        return any(not answer.started and not answer.ended for answer in self._answers)

    async def probe(self, group: Group, user: int, http: httpx.AsyncClient) -> None:
        """Ask what cannot wait, and after a refusal the same with time to wait."""
        body = {**self._body(group, self.answers.short), "background": True, "deadline_ms": 1}
        response = await http.post("/v1/responses", json=body, headers=self._users[user])
        if response.status_code == 429:
            retry_after_s = int(response.headers["retry-after-ms"]) / 1000
            await self.ask(group, self.answers.short, user, retry_after_s)

    def clear(self) -> None:
        """Forget all requests."""
        self.finished.clear()
        self._answers.clear()

    def _body(self, group: Group, tokens: int) -> dict[str, object]:
        return {
            **scripted.body(self.side, next(self._numbers), tokens, self.answers.pace_ms),
            "max_output_tokens": self.answers.most,
            "service_tier": TIERS[group],
        }


class Case(NamedTuple):
    """A load of both classes, as shares of the capacity, of this number of users."""

    name: str
    interactive: float
    batch: float
    users: int = USERS


CASES: Final = (
    Case("one user at four fifths of the capacity", 0.8, 0.0, users=1),
    Case("one user at twice the capacity", 2.0, 0.0, users=1),
    Case("interactive at twice the capacity", 2.0, 0.0),
    Case("interactive at half of it, batch at one and a half", 0.5, 1.5),
    Case("interactive at 1.2 of it, batch at a fifth", 1.2, 0.2),
)


async def measure_places(
    client: Client, case: Case, capacity: float, seconds: float, seed: int
) -> dict[str, float]:
    """One load and its figures. After SETTLE_S, the requests of `seconds` count. The load continues
    while any of them waits: the estimates assume further arrivals.

    Args:
        capacity: tokens per second.
    """
    client.clear()
    began = time.perf_counter()

    def elapsed_s() -> float:
        return time.perf_counter() - began - SETTLE_S

    def counts() -> bool:
        return 0 <= elapsed_s() < seconds

    def goes_on() -> bool:
        return elapsed_s() < seconds or (client.waits and elapsed_s() < LONGEST * seconds)

    rng = random.Random(seed)
    parts: dict[Group, float] = {"interactive": case.interactive, "batch": case.batch}
    groups = [group for group, part in parts.items() if part]
    async with asyncio.TaskGroup() as tasks, httpx.AsyncClient(base_url=client.side.url) as http:

        async def arrive(group: Group) -> None:
            rate = parts[group] * capacity / client.answers.mean
            at = time.perf_counter()
            while goes_on():
                tokens, user = client.answers.draw(rng), rng.randrange(case.users)
                tasks.create_task(client.ask(group, tokens, user, counts=counts()))
                at += rng.expovariate(rate)
                await asyncio.sleep(at - time.perf_counter())

        async def probe(group: Group) -> None:
            await asyncio.sleep(SETTLE_S)
            while counts():
                tasks.create_task(client.probe(group, rng.randrange(case.users), http))
                await asyncio.sleep(PROBE_S)

        async with asyncio.TaskGroup() as load_of_groups:
            for group in groups:
                load_of_groups.create_task(arrive(group))
                load_of_groups.create_task(probe(group))
    return {
        f"{group}_{name}": value
        for group in groups
        for name, value in places_figures.figures(
            each for each in client.finished if each.group == group
        ).items()
    }


async def warm(client: Client, slots: int) -> None:
    """A closed loop of twice as many clients as there are places. Then workers know their rate, and
    the real lengths of answers. The share of long answers is exact: random ones were 15 instead of
    8, and for minutes all estimates were a third too long."""
    answers, clients = client.answers, 2 * slots

    async def one(number: int) -> None:
        for turn in range(WARM_EACH):
            tokens = answers.spread(number + clients * turn)
            await client.ask("interactive", tokens, number % USERS)

    await asyncio.gather(*map(one, range(clients)))
    client.clear()
