"""The workers of a pool as placement sees them: which partitions they have, and how loaded they are
(pure; docs/design.md, Prefix affinity).

Their heartbeats tell of the requests of all gateways. What this one has placed since then is added.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.backlog import UNTOLD_S


@dataclass(frozen=True, slots=True)
class PoolWorker:
    """One ready worker.

    Attributes:
        partitions: that it takes requests from, and that may be chosen.
        capacity: responses that its engine runs at once.
        requests: that run or wait there.
        load: tokens that its engine will make for them.
        waits: whether one of them waits for a place in the engine.
    """

    incarnation: str
    partitions: tuple[int, ...]
    capacity: int = 1
    requests: int = 0
    load: float = 0.0
    waits: bool = False


@dataclass(slots=True)
class Placed:
    """Requests that this gateway placed, as far as the heartbeats may not tell of them.

    Attributes:
        _at: when, and with how many tokens, by worker.
    """

    _at: dict[str, collections.deque[tuple[float, float]]] = field(default_factory=dict)

    def add(self, incarnation: str, tokens: float, now: float) -> None:
        """One more. `now`: monotonic seconds."""
        self._at.setdefault(incarnation, collections.deque()).append((now, tokens))

    def of(self, incarnation: str, now: float) -> tuple[int, float]:
        """How many, and their tokens."""
        found = self._at.get(incarnation)
        while found and found[0][0] < now - UNTOLD_S:
            found.popleft()
        if not found:
            self._at.pop(incarnation, None)
            return 0, 0.0
        return len(found), sum(tokens for _, tokens in found)


def of(
    beats: Sequence[Mapping[str, Any]], among: Collection[int], placed: Placed, now: float
) -> list[PoolWorker]:
    """The ready workers with a partition that may be chosen. `among`: those partitions."""
    found = []
    for beat in beats:
        told = beat.get("partitions")
        partitions = tuple(
            p for p in (told if isinstance(told, list) else ()) if type(p) is int and p in among
        )
        if beat.get("state") != "ready" or not partitions:
            continue
        incarnation = str(beat.get("incarnation", ""))
        count, tokens = placed.of(incarnation, now)
        waiting = sum(map(_number, _listed(beat.get("waiting_tokens"))))
        queued = _number(beat.get("queued"))
        found.append(
            PoolWorker(
                incarnation,
                partitions,
                max(1, int(_number(beat.get("capacity")))),
                int(_number(beat.get("running")) + queued) + count,
                _number(beat.get("running_tokens")) + waiting + tokens,
                waits=bool(queued or waiting),
            )
        )
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and value > 0 else 0.0
