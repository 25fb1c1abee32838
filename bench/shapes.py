"""How many users there are while a load test runs (pure): steady, a ramp, a spike."""

from __future__ import annotations

from typing import Final

# (share of the time, share of the users) per stage: until this much of the time has passed there
# are this many users.
STAGES: Final[dict[str, tuple[tuple[float, float], ...]]] = {
    "steady": ((1.0, 1.0),),
    "ramp": tuple((step / 10, step / 10) for step in range(1, 11)),
    "spike": ((0.4, 0.2), (0.6, 1.0), (1.0, 0.2)),
}


def users_at(shape: str, seconds: float, most: int, length_s: float) -> int | None:
    """Users of a test of `length_s` seconds with at most `most` users, `seconds` after its begin;
    at least one, None after its end."""
    part = seconds / length_s
    return next(
        (max(1, round(share * most)) for until, share in STAGES[shape] if part < until), None
    )
