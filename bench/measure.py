"""Measurements: rows, percentiles, ratios by pairs, and CPU time of processes by role.

Figures are comparable only within one run. So a row names its round, and a ratio is computed within
a round first, then over all rounds. A change of the machine's speed then affects both sides of a
ratio.
"""

from __future__ import annotations

import contextlib
import math
import resource
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil


class Row(msgspec.Struct, frozen=True):
    """One measurement: a case, run on a side in a round. Names of values end in their unit (`_ms`,
    `_us`, `_per_s`)."""

    suite: str
    case: str
    side: str
    round: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure, and where.

    Attributes:
        scratch: the folder for data folders.
        other: the checkout to compare this one with; None without one.
        settings: of this side of `beside`.
        alike: vLLM's server has the worker's arrangement of engine processes.
    """

    quick: bool
    rounds: int
    scratch: Path
    other: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    alike: bool = False

    def pick(self, quick: Any, full: Any) -> Any:
        """The value for a quick or for a full run."""
        return quick if self.quick else full


def percentile(values: Iterable[float], p: float) -> float:
    """The `p`-th percentile (0 to 100) by nearest rank: one of the values. NaN without any."""
    sorted_values = sorted(values)
    if not sorted_values:
        return math.nan
    return sorted_values[max(0, math.ceil(p / 100 * len(sorted_values)) - 1)]


def spread(name: str, seconds: Iterable[float]) -> dict[str, float]:
    """p50 and p99, in ms, of durations in seconds. Empty without durations."""
    times = list(seconds)
    return {f"{name}_p{p}_ms": 1e3 * percentile(times, p) for p in (50, 99)} if times else {}


def median(rows: Iterable[Row], value: str) -> float:
    """The median over the rounds. NaN if no row has the value."""
    values = [row.values[value] for row in rows if not math.isnan(row.values.get(value, math.nan))]
    return statistics.median(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median, least and greatest ratio of two sides over `pairs` rounds."""

    middle: float
    least: float
    greatest: float
    pairs: int


def ratio(rows: Sequence[Row], value: str, over: str, under: str) -> Ratio | None:
    """The ratio of `value` of side `over` to that of side `under`, over the rounds of one case.

    None if no round has both.
    """
    sides = {
        side: {row.round: row.values.get(value, math.nan) for row in rows if row.side == side}
        for side in (over, under)
    }
    ratios = [
        sides[over][n] / sides[under][n]
        for n in sides[over].keys() & sides[under].keys()
        if sides[under][n]
    ]
    ratios = [each for each in ratios if not math.isnan(each)]
    return (
        Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None
    )


def turns(rounds: int, a: Any, b: Any) -> list[tuple[int, Any]]:
    """(round, side) in the order A B, B A, A B …, so that neither side is always the second."""
    return [(n, side) for n in range(rounds) for side in ((a, b) if n % 2 == 0 else (b, a))]


class Meter:
    """CPU seconds of processes by role; child processes count as role `engine`. Use as a
    context manager around the measured time.

    Attributes:
        wall: seconds inside; 0 before the end.
        cpu_by_role: CPU seconds by role inside, this process as `client`; empty before the end.
    """

    def __init__(self, roles: Mapping[str, Sequence[int]]) -> None:
        self._roles = roles
        self._before: dict[psutil.Process, tuple[str, float]] = {}
        self._own = 0.0
        self._began = 0.0
        self.wall = 0.0
        self.cpu_by_role: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._before = self._sample()
        self._own = own_cpu()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._began
        self.cpu_by_role = {"client": own_cpu() - self._own, **dict.fromkeys(self._roles, 0.0)}
        for process, (role, now) in self._sample().items():
            before = self._before.get(process, (role, 0.0))[
                1
            ]  # a process started inside the block began at 0
            self.cpu_by_role[role] = self.cpu_by_role.get(role, 0.0) + max(0.0, now - before)

    @property
    def servers(self) -> float:
        """CPU seconds of all processes except the client."""
        return sum(cpu_s for role, cpu_s in self.cpu_by_role.items() if role != "client")

    def per(self, count: float, unit: str, scale: float = 1e6) -> dict[str, float]:
        """`cpu_ROLE_UNIT` for each role and for all servers together, divided by `count`."""
        shares = {**self.cpu_by_role, "servers": self.servers}
        return (
            {f"cpu_{role}_{unit}": scale * cpu_s / count for role, cpu_s in shares.items()}
            if count
            else {}
        )

    def _sample(self) -> dict[psutil.Process, tuple[str, float]]:
        by_process: dict[psutil.Process, tuple[str, float]] = {}
        for role, pids in self._roles.items():
            for pid in pids:
                with contextlib.suppress(psutil.Error):
                    parent = psutil.Process(pid)
                    by_process |= {
                        child: ("engine", _cpu(child)) for child in parent.children(recursive=True)
                    }
                    by_process[parent] = (role, _cpu(parent))
        return by_process


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:  # it ended in between
        return 0.0
    return float(times.user + times.system)


def own_cpu() -> float:
    """CPU seconds of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident(pids: Iterable[int]) -> int:
    """Resident bytes of these processes."""
    return sum(int(psutil.Process(pid).memory_info().rss) for pid in pids)
