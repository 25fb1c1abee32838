"""Many cases in one test. Every case that fails is named, not only the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

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
