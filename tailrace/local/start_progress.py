"""Whether a part that was started gets on with its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.local import readiness

# Seconds of CPU that count as progress. A process that waits uses about a hundredth of a core,
# which is less than this in the time that a part may stand still.
STEP_S = 3.0


@dataclass(slots=True)
class StartProgress:
    """A part gets on while it uses CPU before its first answer (it imports its modules), and with
    each new answer. On a busy machine both may take minutes, so only a part that stands still is
    late.

    Attributes:
        changed_at: when it got on last (monotonic).
        cpu_s: its CPU seconds at that time.
        answer: its last answer.
    """

    changed_at: float
    cpu_s: float = 0.0
    answer: readiness.Readiness = field(default_factory=readiness.Readiness)

    def still_s(self, now: float, cpu_s: float, answer: readiness.Readiness) -> float:
        """Note its CPU seconds and its answer. Returns for how many seconds it has stood still."""
        imports = not answer.state and cpu_s >= self.cpu_s + STEP_S
        if imports or answer != self.answer:
            self.changed_at, self.cpu_s, self.answer = now, cpu_s, answer
        return now - self.changed_at
