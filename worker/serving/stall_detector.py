"""When a silent engine is given up (pure). Times are monotonic seconds."""

from __future__ import annotations

# Different responses that stalled in a row, without a sign of life between them. One response may
# be the cause itself; this number is not.
HUNG_RESPONSES = 2
# While the engine answers others, one response may be silent for this multiple of the limit: it
# waits in the engine's queue, which is not a stall.
QUEUED_FACTOR = 10


class StallDetector:
    """Signs of life of the engine as a whole.

    Attributes:
        last_sign: when the engine last made output; 0 before.
        _tokens: tokens that the engine made since the start.
        _stall_s: silence of the whole engine that counts as a stall.
        _stalled_ids: responses whose attempts stalled since the last sign of life.
    """

    def __init__(self, stall_s: float) -> None:
        self._tokens = 0.0
        self.last_sign = 0.0
        self._stall_s = stall_s
        self._stalled_ids: set[str] = set()

    @property
    def tokens(self) -> int:
        """Tokens the engine made since the start."""
        return int(self._tokens)

    def record_output(self, tokens: float, now: float) -> None:
        """The engine made `tokens` for one of its responses."""
        self._tokens += tokens
        self.last_sign = now
        self._stalled_ids.clear()

    def stalled(self, last_step: float, now: float) -> bool:
        """Whether a response must be given up whose last step from the engine came at
        `last_step`."""
        silence_s = now - last_step
        engine_silence_s = now - max(last_step, self.last_sign)
        return engine_silence_s > self._stall_s or silence_s > self._stall_s * QUEUED_FACTOR

    def give_up(self, rid: str, now: float, *, last: bool = False) -> bool:
        """Record that an attempt at `rid` stalled. Returns whether the engine itself hangs.

        The engine hangs when several responses stalled in a row. It also hangs when a last attempt
        stalls while the whole engine is silent: two workers died with this request, and the next
        requests must not spend their last attempts on an engine that it stopped.
        """
        self._stalled_ids.add(rid)
        silent = now - self.last_sign > self._stall_s
        return len(self._stalled_ids) >= HUNG_RESPONSES or (last and silent)
