"""The circuit breaker of one pool (pure).

    CLOSED     --half of the last outcomes failed-->        OPEN
    CLOSED     --another gateway's is open-->               OPEN
    OPEN       --its time is over, or a worker is back-->   HALF_OPEN
    HALF_OPEN  --PASSES successes-->                        CLOSED
    HALF_OPEN  --a failure-->                               OPEN, for twice as long

Closed lets every request through, open none, half-open PROBES at once. Time (monotonic seconds) and
luck (from 0 up to 1) are arguments.
"""

from __future__ import annotations

import collections
import enum
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 30.0  # older outcomes do not count
LEAST: Final = 4  # fewer outcomes say nothing
SHARE: Final = 0.5  # of failures among them
FIRST_OPEN_S: Final = 5.0
MOST_OPEN_S: Final = 120.0
JITTER: Final = 0.2  # so that gateways do not probe at the same time
PROBES: Final = 2
PASSES: Final = 2
PROBE_S: Final = 60.0  # a probe without an outcome for this long is dropped


class State(enum.Enum):
    """Whether a pool gets requests."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


@dataclass(slots=True)
class Breaker:
    """The breaker of one pool.

    Attributes:
        openings: how often it opened in a row.
        reason: the reason of its last opening.
        _outcomes: when requests ended or failed, and whether they failed.
        _state: may be OPEN after its time is over; `state` corrects that.
        _until: when its time is over.
        _probes: start times of half-open probes without an outcome.
        _successes: successes since it became half open.
    """

    openings: int = 0
    reason: str = ""
    _outcomes: collections.deque[tuple[float, bool]] = field(default_factory=collections.deque)
    _state: State = State.CLOSED
    _until: float = 0.0
    _probes: collections.deque[float] = field(default_factory=collections.deque)
    _successes: int = 0

    def state(self, now: float) -> State:
        """Its state at `now`."""
        if self._state is State.OPEN and now >= self._until:
            self.half_open()
        return self._state

    def wait_s(self, now: float) -> float:
        """How long it stays open."""
        return max(0.0, self._until - now) if self.state(now) is State.OPEN else 0.0

    def admits(self, now: float) -> bool:
        """Whether a request may go to the pool. In the half-open state it becomes a probe."""
        state = self.state(now)
        if state is not State.HALF_OPEN:
            return state is State.CLOSED
        while self._probes and self._probes[0] <= now - PROBE_S:
            self._probes.popleft()
        if len(self._probes) >= PROBES:
            return False
        self._probes.append(now)
        return True

    def record(self, failure: str, now: float, luck: float) -> bool:
        """Record a success, or a failure with its reason. Returns whether it opened the breaker.
        Outcomes are ignored while it is open: those requests are older."""
        match self.state(now):
            case State.OPEN:
                return False
            case State.HALF_OPEN if failure:
                return self._open(failure, now, luck)
            case State.HALF_OPEN:
                if self._probes:
                    self._probes.popleft()
                self._successes += 1
                if self._successes >= PASSES:
                    self._close()
                return False
        self._outcomes.append((now, bool(failure)))
        while self._outcomes[0][0] < now - WINDOW_S:
            self._outcomes.popleft()
        if not failure:  # the common case, without counting thousands of outcomes
            return False
        failures = sum(failed for _, failed in self._outcomes)
        if len(self._outcomes) < LEAST or failures < SHARE * len(self._outcomes):
            return False
        return self._open(failure, now, luck)

    def release(self) -> None:
        """A request ended without evidence about the pool; its probe is dropped."""
        if self._state is State.HALF_OPEN and self._probes:
            self._probes.popleft()

    def adopt(self, openings: int, reason: str, for_s: float, now: float) -> None:
        """Adopt the open breaker of another gateway, for `for_s` seconds."""
        self.openings, self.reason = max(self.openings, openings), reason
        self._state, self._until = State.OPEN, now + min(for_s, MOST_OPEN_S)

    def half_open(self) -> None:
        """Try the pool with a few requests."""
        self._state, self._successes = State.HALF_OPEN, 0
        self._probes.clear()
        self._outcomes.clear()

    def _open(self, reason: str, now: float, luck: float) -> bool:
        self.openings += 1
        self.reason = reason
        for_s = min(MOST_OPEN_S, FIRST_OPEN_S * 2.0 ** (min(self.openings, 16) - 1))
        self._state, self._until = State.OPEN, now + for_s * (1 + JITTER * (2 * luck - 1))
        return True

    def _close(self) -> None:
        self._state, self.openings, self.reason = State.CLOSED, 0, ""
