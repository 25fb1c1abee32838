"""One stage for all short scenarios, started once; scenarios that hurt the broker have their
own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults import drill, stage

SEED = int(os.environ.get("TAILRACE_TEST_SEED", "1"))
ATTEMPTS = 3
LONG = pytest.mark.nightly


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stage.Stage]:
    """Two workers, gateways and pushes; worker-1 and push-1 reach the broker over links that can
    fail."""
    made = stage.Stage(
        tmp_path_factory.mktemp("stage"),
        links=["worker-1", "push-1"],
        longest=stage.LONG_ANSWER,
    ).open()
    yield made
    made.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A fault that did not bite proves nothing: the drill is done again. One that never bites is
    visible, and never green."""
    try:
        return (yield)
    except drill.Inconclusive as error:
        said = [str(error)]
    while len(said) < ATTEMPTS:
        try:
            return item.runtest()
        except drill.Inconclusive as error:
            said.append(str(error))
    pytest.fail(f"INCONCLUSIVE {ATTEMPTS} times; the last: {said[-1]}", pytrace=False)
