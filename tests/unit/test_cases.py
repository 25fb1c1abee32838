"""Many cases in one test."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from tests.support import cases


def test_every_case_that_fails_is_named_and_the_others_run() -> None:
    run = []
    with pytest.raises(ExceptionGroup, match="2 of 3 cases: 1; 3") as raised:  # noqa: SIM117, PT012
        with cases.collected() as case:
            for number in (1, 2, 3):
                with case(number):
                    run.append(number)
                    if number == 1:
                        with pytest.raises(ValueError, match="x"):
                            pass
                    assert number < 3
    assert run == [1, 2, 3]
    assert [type(error) for error in raised.value.exceptions] == [AssertionError, AssertionError]


def test_no_case_at_all_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="no case"), cases.collected():
        pass


def test_rows_of_one_test_share_its_fixtures_and_are_named() -> None:
    seen: list[tuple[int, str, list[int]]] = []

    @cases.each("number", [pytest.param(1, id="one"), 2])
    @cases.each(("letter", "rest"), [("a", [1]), ("b", [2])], ids=["A", "B"])
    def rows(fixture: str, number: int, letter: str, rest: list[int]) -> None:
        seen.append((number, letter, rest))
        assert (number, letter, fixture) == (1, "a", "f")

    assert list(inspect.signature(rows).parameters) == ["fixture"]
    with pytest.raises(ExceptionGroup, match=r"2 of 2 cases: one; \{'number': 2\}") as raised:
        rows(fixture="f")
    assert len(seen) == 4
    assert [str(each).split(" (")[0] for each in raised.value.exceptions] == [
        "1 of 2 cases: B",
        "2 of 2 cases: A; B",
    ]


async def test_rows_of_a_coroutine_are_awaited() -> None:
    seen = []

    @cases.each("number", range(3), ids=lambda number: f"n{number}")
    async def rows(number: int) -> None:
        seen.append(number)
        await asyncio.sleep(0)
        assert number != 1

    with pytest.raises(ExceptionGroup, match="1 of 3 cases: n1"):
        await rows()
    assert seen == [0, 1, 2]
