"""The number of users during a load test (pure): steady, a ramp, a spike."""

from __future__ import annotations

from typing import Final

# Stages as (share of the time, share of the users): the share of users holds until that share of
# the time has passed.
STAGES: Final[dict[str, tuple[tuple[float, float], ...]]] = {
    "steady": ((1.0, 1.0),),
    "ramp": tuple((step / 10, step / 10) for step in range(1, 11)),
    "spike": ((0.4, 0.2), (0.6, 1.0), (1.0, 0.2)),
}


def users_at(shape: str, seconds: float, most: int, length_s: float) -> int | None:
    """The number of users `seconds` after the start of a test of `length_s` seconds.

    At least one and at most `most`; None after the end.
    """
    part = seconds / length_s
    return next(
        (max(1, round(share * most)) for until, share in STAGES[shape] if part < until), None
    )
