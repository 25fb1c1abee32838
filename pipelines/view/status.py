"""What looks at a pipeline say: its state, how fast it goes, what it has cost."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from pipelines import definition
from pipelines.progress import Progress

WINDOW_S: Final = (
    30.0  # runners commit every few seconds: a shorter one would show a rate that jumps
)
SHORTEST_S: Final = 6.0  # shortest window without a row that proves a standstill


class State(StrEnum):
    """How a pipeline is."""

    UNREAD = "unread"  # not looked at yet
    RUNNING = "running"  # rows were done within the window
    DONE = "done"  # no record waits
    STANDING = "standing"  # records wait, and none was done within the window
    MEASURING = "measuring"  # records wait, and the window is too short to tell
    MISSING = "missing"  # the input topic is not there
    UNKNOWN = "unknown"  # the broker does not answer; figures are those of the last look


class Look(NamedTuple):
    """What one look found. `at`: monotonic seconds; `wall`: seconds since the epoch."""

    at: float
    wall: float
    progress: Progress


class Observations(NamedTuple):
    """The recent observations of one pipeline.

    Attributes:
        looks: of the window, oldest first. After a failure only the last good one remains.
        problem: why the newest look failed: MISSING or UNKNOWN; None if it did not.
    """

    looks: tuple[Look, ...] = ()
    problem: State | None = None

    def with_look(self, look: Look) -> Observations:
        """After a look that succeeded. The rate begins anew after a failure, and where counts went
        back, because the group was made anew."""
        former = self.looks if self.problem is None else ()
        if former and look.progress.done.read < former[-1].progress.done.read:
            former = ()
        return Observations((*(each for each in former if look.at - each.at <= WINDOW_S), look))

    def with_problem(self, problem: State) -> Observations:
        """After a look that failed."""
        return Observations(self.looks[-1:], problem)

    @property
    def rate(self) -> float | None:
        """Rows per second over the window; None where it was not measured."""
        first, last = self.looks[:1], self.looks[-1:]
        seconds = last[0].at - first[0].at if last else 0.0
        if self.problem is not None or seconds <= 0:
            return None
        return (last[0].progress.done.read - first[0].progress.done.read) / seconds

    @property
    def state(self) -> State:
        """How the pipeline is."""
        if self.problem is not None:
            return self.problem
        if not self.looks:
            return State.UNREAD
        if not self.looks[-1].progress.lag:
            return State.DONE
        if self.rate:
            return State.RUNNING
        long_enough = self.looks[-1].at - self.looks[0].at >= SHORTEST_S
        return State.STANDING if long_enough else State.MEASURING


def members(
    pipeline: definition.Pipeline, observations: Observations, prices: Sequence[float]
) -> dict[str, Any]:
    """One pipeline, for programs.

    Args:
        prices: of a million tokens of input and of output; zeros where none were given.

    Returns:
        The members of `tailrace pipelines status --json` (null before the first look), and
        `share`: of the rows that are done, 0 to 1; `cost`: null without prices; `looked_at`: of
        the figures, in seconds since the epoch.
    """
    report: dict[str, Any] = {
        "name": pipeline.name,
        "revision": pipeline.revision,
        "model": pipeline.model,
        "input": pipeline.input.topic,
        "outputs": list(pipeline.outputs),
        "state": observations.state.value,
        "looked_at": None,
        "progress": None,
    }
    if not observations.looks:
        return report
    last = observations.looks[-1]
    progress = last.progress._replace(rate=observations.rate)
    done = progress.done
    total = done.read + progress.lag
    cost = (done.input_tokens * prices[0] + done.output_tokens * prices[1]) / 1e6
    figures = progress.members()
    del figures["partitions"]
    return report | {
        "looked_at": round(last.wall, 3),
        "progress": {
            **figures,
            "share": done.read / total if total else 1.0,
            "cost": round(cost, 6) if any(prices) else None,
        },
    }
