"""How much of what waits will have begun by when."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.queue.start_forecast import StartForecast

# Fast for a second, then slow, and nothing for a second; after it, 10 tokens a second.
CURVE = StartForecast((1.0, 3.0, 4.0), (100.0, 120.0, 120.0), 10.0)

curves = st.builds(
    lambda steps, rate: StartForecast(
        tuple(float(sum(s for s, _ in steps[: n + 1])) for n in range(len(steps))),
        tuple(float(sum(t for _, t in steps[: n + 1])) for n in range(len(steps))),
        rate,
    ),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 500)), max_size=8),
    st.integers(1, 100).map(float),
)


@pytest.mark.parametrize(
    ("tokens", "seconds"),
    [(0, 0), (-5, 0), (50, 0.5), (100, 1), (110, 2), (120, 3), (130, 5), (220, 14)],
)
def test_the_time_until_so_many_tokens_have_begun(tokens: float, seconds: float) -> None:
    assert CURVE.seconds(tokens) == pytest.approx(seconds)


def test_without_times_the_rate_holds_and_without_a_rate_nothing_begins() -> None:
    assert StartForecast(rate=50.0).seconds(100) == 2
    assert StartForecast().seconds(1) == math.inf
    assert StartForecast((2.0,), (10.0,)).seconds(5) == 1
    assert StartForecast((2.0,), (10.0,)).seconds(11) == math.inf


@given(curves, st.floats(0.1, 1e4), st.floats(1.0, 2.0))
def test_more_takes_longer(curve: StartForecast, tokens: float, times: float) -> None:
    assert 0 < curve.seconds(tokens) <= curve.seconds(tokens * times)
