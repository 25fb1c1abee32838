"""Where a request stands in the queue for its turn, as clients are told (pure)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

# Changes below these are not worth an event. The part bounds the number of events of one response.
POSITION_PART: Final = 0.1
ETA_PART: Final = 0.2
ETA_S: Final = 1.0


class Place(NamedTuple):
    """`position`: requests that start before it; `eta_s`: seconds until it starts, None while the
    rate is not known; `at_least`: both are lower bounds."""

    position: int
    eta_s: float | None
    at_least: bool = False

    def noticeable(self, before: Place | None) -> bool:
        """Whether a client that was told `before` should be told this."""
        if before is None or self.at_least != before.at_least:
            return True
        if abs(self.position - before.position) > POSITION_PART * before.position:
            return True
        if self.eta_s is None or before.eta_s is None:
            return self.eta_s is not before.eta_s
        return abs(self.eta_s - before.eta_s) > max(ETA_S, ETA_PART * before.eta_s)

    def member(self) -> dict[str, Any]:
        """The member `queue` of an event (docs/protocol.md, section 4)."""
        found: dict[str, Any] = {"position": self.position}
        if self.eta_s is not None:
            found["eta_s"] = round(self.eta_s, 1)
        if self.at_least:
            found["at_least"] = True
        return found
