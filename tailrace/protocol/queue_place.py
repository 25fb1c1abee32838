"""The place of a request in the queue, as clients see it (pure)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tailrace.protocol import wait_times

# A smaller change is not worth an event. It bounds the number of events of one response.
POSITION_PART: Final = 0.1


class Place(NamedTuple):
    """`position`: requests that start before it; `eta_s`: seconds until it starts, None while the
    rate is not known; `at_least`: both are lower bounds."""

    position: int
    eta_s: float | None
    at_least: bool = False

    def noticeable(self, before: Place | None) -> bool:
        """Whether a client that knows `before` should get this."""
        if before is None or self.at_least != before.at_least:
            return True
        if abs(self.position - before.position) > POSITION_PART * before.position:
            return True
        return self._shown_s != before._shown_s

    def member(self) -> dict[str, Any]:
        """The member `queue` of an event (docs/protocol.md, section 4)."""
        member: dict[str, Any] = {"position": self.position}
        if self._shown_s is not None:
            member["eta_s"] = self._shown_s
        if self.at_least:
            member["at_least"] = True
        return member

    @property
    def _shown_s(self) -> float | None:
        return None if self.eta_s is None else wait_times.rounded_up(self.eta_s)
