"""How much of what waits will have begun by when."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.starts import Starts, together

# Fast for a second, then slow, and nothing for a second; after it, 10 tokens a second.
CURVE = Starts((1.0, 3.0, 4.0), (100.0, 120.0, 120.0), 10.0)

curves = st.builds(
    lambda steps, rate: Starts(
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


@pytest.mark.parametrize(("seconds", "tokens"), [(0, 0), (0.5, 50), (2, 110), (3.5, 120), (5, 130)])
def test_how_many_have_begun_by_then(seconds: float, tokens: float) -> None:
    assert CURVE.by(seconds) == pytest.approx(tokens)


def test_without_times_the_rate_holds_and_without_a_rate_nothing_begins() -> None:
    assert Starts(rate=50.0).seconds(100) == 2
    assert Starts().seconds(1) == math.inf
    assert Starts((2.0,), (10.0,)).seconds(5) == 1
    assert Starts((2.0,), (10.0,)).seconds(11) == math.inf


@given(st.lists(curves, min_size=1, max_size=3), st.floats(0.1, 1e4))
def test_together_as_much_begins_as_in_all_of_them(parts: list[Starts], seconds: float) -> None:
    assert together(parts).by(seconds) == pytest.approx(sum(part.by(seconds) for part in parts))
    assert together(parts, 2.0).by(seconds) == pytest.approx(2 * together(parts).by(seconds))


@given(curves, st.floats(0.1, 1e4))
def test_the_time_is_the_first_by_which_so_many_have_begun(curve: Starts, tokens: float) -> None:
    seconds = curve.seconds(tokens)
    assert curve.by(seconds) == pytest.approx(tokens)
    assert curve.by(seconds * 0.999) < tokens * (1 + 1e-9)
