"""Many cases in one test. Every case that fails is named, not only the first."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from _pytest.mark import ParameterSet

MAX_NAME_CHARS = 200
Ids = Callable[[Any], object] | Iterable[object] | None
Labels = Callable[[Any], object] | list[str] | None
Case = Callable[[object], AbstractContextManager[None]]


@contextlib.contextmanager
def collected() -> Iterator[Case]:
    """Gives a function that begins a case with a name. At the end all failures are raised together.

        with cases.collected() as case:
            for text in TEXTS:
                with case(text):
                    assert parse(text)

    Raises:
        ExceptionGroup: cases have failed; its text names them.
        AssertionError: there was no case.
    """
    count = 0
    failures: list[Exception] = []
    names: list[str] = []

    @contextlib.contextmanager
    def case(name: object) -> Iterator[None]:
        nonlocal count
        count += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failure = error if isinstance(error, Exception) else AssertionError(str(error))
            names.append(str(name))
            failure.add_note(f"in the case {name}")
            failures.append(failure)

    yield case
    if failures:
        raise ExceptionGroup(f"{len(names)} of {count} cases: {'; '.join(names)}", failures)
    assert count, "there was no case"


class _Row:
    """One row of `each`; its text is its name."""

    def __init__(self, number: int, row: Any, names: Sequence[str], ids: Labels) -> None:
        set_of = isinstance(row, ParameterSet)
        values = row.values if set_of else row if len(names) > 1 else [row]
        self.arguments = dict(zip(names, values, strict=True))
        self._number = number
        self._ids = [row.id] * (number + 1) if set_of and row.id else ids

    def __str__(self) -> str:
        if callable(self._ids):
            ids = self._ids
            return "-".join(str(ids(each) or repr(each)) for each in self.arguments.values())
        if self._ids is not None:
            return self._ids[self._number]
        return repr(self.arguments)[:MAX_NAME_CHARS]


def each(
    names: str | Sequence[str],
    rows: Iterable[Any],
    ids: Ids = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Like `pytest.mark.parametrize`, in one test: for hundreds of rows that take no time. The rows
    share the fixtures of the test."""
    names = [names] if isinstance(names, str) else list(names)
    labels = ids if ids is None or callable(ids) else [str(each) for each in ids]
    called = [_Row(number, row, names, labels) for number, row in enumerate(rows)]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def one_by_one(*given: Any, **fixtures: Any) -> None:
            with collected() as case:
                for row in called:
                    with case(row):
                        test(*given, **fixtures, **row.arguments)

        async def awaited(*given: Any, **fixtures: Any) -> None:
            with collected() as case:
                for row in called:
                    with case(row):
                        await test(*given, **fixtures, **row.arguments)

        whole: Any = functools.wraps(test)(
            awaited if inspect.iscoroutinefunction(test) else one_by_one
        )
        signature = inspect.signature(test)
        left = [p for p in signature.parameters.values() if p.name not in names]
        whole.__signature__ = signature.replace(parameters=left)
        return whole  # type: ignore[no-any-return]

    return decorate
