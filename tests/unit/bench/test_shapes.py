"""The shapes of a load test: who is there when."""

from __future__ import annotations

import pytest

from bench import shapes


def course(shape: str, most: int = 50, length: int = 100) -> list[int | None]:
    return [shapes.users_at(shape, second, most, length) for second in range(length)]


@pytest.mark.parametrize("shape", shapes.STAGES)
def test_every_shape_has_users_to_its_end_and_none_afterwards(shape: str) -> None:
    found = course(shape)
    assert None not in found
    assert max(found) == 50  # type: ignore[type-var]
    assert shapes.users_at(shape, 100, 50, 100) is None
    assert shapes.users_at(shape, 0, 1, 100) == 1


def test_steady_stays() -> None:
    assert set(course("steady")) == {50}


def test_a_ramp_only_climbs() -> None:
    found = course("ramp")
    assert found == sorted(found)  # type: ignore[type-var]
    assert (found[0], found[55], found[99]) == (5, 30, 50)


def test_a_spike_comes_suddenly_and_goes() -> None:
    assert [course("spike")[second] for second in (0, 39, 40, 59, 60, 99)] == [
        10,
        10,
        50,
        50,
        10,
        10,
    ]
