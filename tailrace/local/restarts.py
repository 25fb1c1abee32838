"""When a part that ended is started again (pure).

Times are seconds on one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_S = 0.5
LONGEST_S = 30.0
STEADY_S = 30.0  # a part that was ready for this long begins again with FIRST_S
KEEPS_DYING = 3  # ends in a row after which a part "keeps dying"


@dataclass(slots=True)
class Restarts:
    """The ends of one part, and the back-off that follows from them.

    Attributes:
        in_a_row: ends without STEADY_S of readiness between them.
        ready_since: when its current process became ready; None while it is not.
        due: when to start it again; None while it runs, and when it is not to be started again.
    """

    in_a_row: int = 0
    ready_since: float | None = None
    due: float | None = None

    def ready(self, now: float) -> None:
        """Its process answers that it is ready."""
        if self.ready_since is None:
            self.ready_since = now

    def ended(self, now: float) -> float:
        """Its process ended. Returns the seconds until it is due again."""
        if self.ready_since is not None and now - self.ready_since >= STEADY_S:
            self.in_a_row = 0
        self.ready_since = None
        pause: float = min(FIRST_S * 2**self.in_a_row, LONGEST_S)
        self.in_a_row += 1
        self.due = now + pause
        return pause

    def started(self) -> None:
        """A new process was started."""
        self.due = None

    @property
    def keeps_dying(self) -> bool:
        """Whether an explanation is due rather than another try alone."""
        return self.in_a_row >= KEEPS_DYING

    @property
    def explain(self) -> bool:
        """Whether to explain this end: the third, sixth, twelfth … in a row."""
        times, rest = divmod(self.in_a_row, KEEPS_DYING)
        return rest == 0 and times > 0 and times & (times - 1) == 0
