"""An instance without streams follows no partition and did not notice that the log was replaced: it
called every new response lost."""

from __future__ import annotations

import asyncio

import pytest

from tailrace import log
from tailrace.delivery import delivery
from tailrace.protocol import ids, records

OWNER = records.Owner("https://tests", "alice")


def of_log(name: str) -> str:
    return ids.mint(ids.Address(ids.incarnation_tag(name), 0, 0), b"x" * 11)


@pytest.fixture
def one() -> delivery.Delivery:
    """It knows log `one`."""
    return delivery.Delivery(
        bootstrap="nowhere:1",
        layout=log.Layout("one", ids.incarnation_tag("one"), 1),
        pools=["default"],
        preferred=[],
    )


def log_is(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    async def layout(bootstrap: str) -> log.Layout:
        asked.append(bootstrap)
        return log.Layout(name, ids.incarnation_tag(name), 1)

    monkeypatch.setattr(log, "layout", layout)
    return asked


async def test_when_the_log_was_replaced_nobody_is_told_that_the_new_log_lost_something(
    one: delivery.Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_is("two", monkeypatch)
    with pytest.raises(log.LogUnavailable):
        await one.find(of_log("two"), OWNER)
    with pytest.raises(log.LogChanged):
        await asyncio.wait_for(one._until_replaced(), 1)


async def test_an_old_log_s_responses_are_lost_and_the_question_which_log_it_is_is_not_asked_each_time(
    one: delivery.Delivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = log_is("one", monkeypatch)
    for _ in range(3):
        with pytest.raises(log.HistoryLost):
            await one.find(of_log("zero"), OWNER)
    assert len(asked) == 1
