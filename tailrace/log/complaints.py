"""Folds what aiokafka logs while the broker is away into two lines: away, and back."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from tailrace.log import aiokafka_internals
from tailrace.telemetry import Action, log

# After this time without a complaint the broker is back: while it is away the client complains
# several times a second.
QUIET_S: Final = 5.0
REPEAT_S: Final = 60.0  # any other complaint is let through once in this time


class KafkaComplaints:
    """Folds aiokafka's lines, hundreds in ten seconds, into "away" and "back".

    Decides only; times come in as arguments, in seconds.

    Attributes:
        away_since: when the first connection complaint came; None while the broker answers.
        complaints: lines swallowed since then.
        _last: time of the latest complaint while away.
        _last_passed: by message template, when it was last let through.
    """

    def __init__(self, quiet_s: float = QUIET_S) -> None:
        self.away_since: float | None = None
        self.complaints = 0
        self._quiet_s = quiet_s
        self._last = 0.0
        self._last_passed: dict[str, float] = {}

    def complain(self, template: str, now: float) -> Action | None:
        """KAFKA_AWAY: the broker went away. NOTE: let this line through. None: swallow it."""
        if self.away_since is not None:
            self.complaints += 1
            self._last = now
            return None
        if template.startswith(aiokafka_internals.AWAY_MESSAGES):
            self.away_since = self._last = now
            self.complaints = 1
            return Action.KAFKA_AWAY
        if now - self._last_passed.get(template, -REPEAT_S) < REPEAT_S:
            return None
        self._last_passed[template] = now
        return Action.NOTE

    def back(self, now: float) -> float | None:
        """Seconds that the broker was away, once, after QUIET_S without a complaint; else None."""
        if self.away_since is None or now - self._last < self._quiet_s:
            return None
        away_s, self.away_since = self._last - self.away_since, None
        return away_s


class KafkaHandler(logging.Handler):
    """The handler of the logger "aiokafka". A timer of the running loop notices that the broker is
    back; without a loop the next complaint does."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, quiet_s: float = QUIET_S
    ) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._complaints = KafkaComplaints(quiet_s)

    def emit(self, record: logging.LogRecord) -> None:
        self._check_back()
        verdict = self._complaints.complain(str(record.msg), self._clock())
        if verdict is Action.KAFKA_AWAY:
            log(Action.KAFKA_AWAY, reason=record.getMessage())
            self._check_later()
        elif verdict is Action.NOTE:
            logging.getLogger().handle(record)

    def _check_back(self) -> bool:
        away_s = self._complaints.back(self._clock())
        if away_s is None:
            return False
        log(Action.KAFKA_BACK, seconds=round(away_s, 1), complaints=self._complaints.complaints)
        return True

    def _check_later(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        loop.call_later(1.0, self._check_and_repeat)

    def _check_and_repeat(self) -> None:
        if self._complaints.away_since is not None and not self._check_back():
            self._check_later()


def fold_complaints() -> None:
    """Send the lines of the logger "aiokafka" through a `KafkaHandler`. May be called again."""
    kafka = logging.getLogger("aiokafka")
    kafka.handlers = [KafkaHandler()]
    kafka.setLevel(logging.WARNING)
    kafka.propagate = False
