"""Figures and how they are taken: rows, percentiles, ratios pair by pair, and the CPU time of
processes by role.

A figure counts only beside another one of the same run, so a row says in which round it was taken,
and ratios are made within a round first and summed up afterwards: a drift of the machine then hits
both sides of a ratio alike.
"""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil


class Row(msgspec.Struct, frozen=True):
    """One measurement. `case` is what was asked of the `side` in this round; names of values end in
    their unit (`_ms`, `_us`, `_per_s`)."""

    suite: str
    case: str
    side: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure. `scratch` is for data folders; `early` the whole path's two sides if
    they are being started already; `other` the checkout to compare this one with."""

    quick: bool
    rounds: int
    scratch: Path
    early: contextlib.AbstractContextManager[tuple[Any, Any]] | None = None
    other: Path | None = None

    def pick(self, quick: Any, full: Any) -> Any:
        """The one of both that is wanted."""
        return quick if self.quick else full


def percentile(values: Iterable[float], p: float) -> float:
    """The `p`-th percentile (0 to 100) by nearest rank: a value that was really seen. NaN of
    nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)]


def spread(name: str, seconds: Iterable[float]) -> dict[str, float]:
    """p50 and p99 in ms of durations in seconds; nothing of nothing."""
    found = list(seconds)
    return {f"{name}_p{p}_ms": 1e3 * percentile(found, p) for p in (50, 99)} if found else {}


def median(rows: Iterable[Row], value: str) -> float:
    """Over the rounds; NaN where no row has it."""
    found = [row.values[value] for row in rows if not math.isnan(row.values.get(value, math.nan))]
    return statistics.median(found) if found else math.nan


@dataclass(frozen=True, slots=True)
class Ratio:
    """One side over the other, pair by pair: median, least and greatest of `pairs` ratios."""

    middle: float
    least: float
    greatest: float
    pairs: int


def ratio(rows: Sequence[Row], value: str, over: str, under: str) -> Ratio | None:
    """`value` of side `over` divided by that of side `under`, per round. Rows are of one case; None
    without a single pair."""
    sides = {
        side: {row.round: row.values.get(value, math.nan) for row in rows if row.side == side}
        for side in (over, under)
    }
    found = [
        sides[over][n] / sides[under][n]
        for n in sides[over].keys() & sides[under].keys()
        if sides[under][n]
    ]
    found = [each for each in found if not math.isnan(each)]
    return Ratio(statistics.median(found), min(found), max(found), len(found)) if found else None


def turns(rounds: int, a: Any, b: Any) -> list[tuple[int, Any]]:
    """(round, side) in the order A B, B A, A B …: neither side always comes second, and a server
    serves two measurements per start."""
    return [(n, side) for n in range(rounds) for side in ((a, b) if n % 2 == 0 else (b, a))]


class Meter:
    """CPU seconds of processes by role; what a process started counts as role `engine`. Use as a
    context manager around the measured time.

    Attributes:
        wall: seconds inside; 0 before the end.
        used: CPU seconds by role inside, this process as `client`; empty before the end.
    """

    def __init__(self, roles: Mapping[str, Sequence[int]]) -> None:
        self._roles = roles
        self._before: dict[psutil.Process, tuple[str, float]] = {}
        self._own = 0.0
        self._began = 0.0
        self.wall = 0.0
        self.used: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._before = self._look()
        self._own = own_cpu()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._began
        self.used = {"client": own_cpu() - self._own, **dict.fromkeys(self._roles, 0.0)}
        for process, (role, now) in self._look().items():
            before = self._before.get(process, (role, 0.0))[
                1
            ]  # one that was born inside began at nothing
            self.used[role] = self.used.get(role, 0.0) + max(0.0, now - before)

    @property
    def servers(self) -> float:
        """CPU seconds of everything but the client."""
        return sum(used for role, used in self.used.items() if role != "client")

    def per(self, count: float, unit: str, scale: float = 1e6) -> dict[str, float]:
        """`cpu_ROLE_UNIT` for every role, and for all servers together, divided by `count`."""
        shares = {**self.used, "servers": self.servers}
        return (
            {f"cpu_{role}_{unit}": scale * used / count for role, used in shares.items()}
            if count
            else {}
        )

    def _look(self) -> dict[psutil.Process, tuple[str, float]]:
        found: dict[psutil.Process, tuple[str, float]] = {}
        for role, pids in self._roles.items():
            for pid in pids:
                with contextlib.suppress(psutil.Error):
                    parent = psutil.Process(pid)
                    found |= {
                        child: ("engine", _cpu(child)) for child in parent.children(recursive=True)
                    }
                    found[parent] = (role, _cpu(parent))
        return found


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it ended between two looks
        return 0.0
    return float(times.user + times.system)


def own_cpu() -> float:
    """CPU seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident(pids: Iterable[int]) -> int:
    """Resident bytes of these processes."""
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)
