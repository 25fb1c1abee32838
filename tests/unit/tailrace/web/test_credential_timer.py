"""When a credential's end is announced, and what a client may show in its place."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from tailrace.protocol import errors
from tailrace.web import auth_messages, credential_timer
from tests.support import cases, collected


class Clock:
    """A clock whose only timer is run by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[float | str] = []
        self.next: tuple[float, Any] | None = None

    def later(self, after_s: float, call: Any) -> Any:
        self.next = (self.now + after_s, call)
        return self

    def cancel(self) -> None:
        self.next = None

    def run(self) -> float:
        """Run the timer at its time, which is returned."""
        assert self.next is not None
        (self.now, call), self.next = self.next, None
        call()
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def timer(clock: Clock, *, warned: bool = True) -> credential_timer.CredentialTimer:
    return credential_timer.CredentialTimer(
        lambda: clock.now,
        lambda: clock.told.append("end"),
        clock.told.append if warned else None,
        clock.later,
    )


def test_the_end_is_announced_a_minute_before(clock: Clock) -> None:
    timer(clock).start(4600.0)
    assert (clock.run(), clock.told) == (4540.0, [60.0])
    assert (clock.run(), clock.told) == (4600.0, [60.0, "end"])
    assert clock.next is None


def test_a_new_credential_takes_the_place_of_the_former_one(clock: Clock) -> None:
    watched = timer(clock)
    watched.start(1100.0)
    assert clock.run() == 1050.0  # half of the time: less than two minutes were left
    watched.start(8200.0)
    assert clock.run() == 8140.0
    watched.cancel()
    assert clock.next is None
    assert clock.told == [50.0, 60.0]


def test_the_same_credential_again_and_again_is_no_endless_exchange(clock: Clock) -> None:
    watched = timer(clock)
    watched.start(1064.0)
    while clock.told[-1:] != ["end"]:
        clock.run()
        if clock.told[-1] != "end" and clock.now < 1063.0:
            watched.start(1064.0)
    assert len(clock.told) < 10


def test_without_a_warning_there_is_only_the_end(clock: Clock) -> None:
    timer(clock, warned=False).start(4600.0)
    assert (clock.run(), clock.told) == (4600.0, ["end"])


@pytest.mark.parametrize("end", [999.0, 1000.0])
def test_one_that_has_ended_is_not_announced(clock: Clock, end: float) -> None:
    timer(clock).start(end)
    while clock.next is not None:
        clock.run()
    assert clock.told == ["end"]


@cases.each(
    "body",
    [
        {},
        {"credential": None, "ticket": None},
        {"credential": "a", "ticket": "b"},
        {"credential": 5},
        {"ticket": ["x"]},
        {"credential": "x" * (auth_messages.MAX_CREDENTIAL_CHARS + 1)},
    ],
)
def test_exactly_one_text_of_a_possible_length_is_shown(body: dict[str, Any]) -> None:
    with pytest.raises(errors.ApiError) as refused:
        auth_messages.parse(body)
    assert refused.value.status == 400


def test_a_credential_or_a_ticket_is_shown() -> None:
    assert auth_messages.parse({"credential": "c"}) == auth_messages.Presented("c", None)
    assert auth_messages.parse({"ticket": "t", "type": "auth"}) == auth_messages.Presented(
        None, "t"
    )


def test_a_cancelled_timer_refers_to_nobody_and_does_not_start_again(clock: Clock) -> None:
    """A stream or socket and its timer refer to each other. Together with all events of the
    response they waited for the garbage collector, which comes after minutes."""

    class Holder:
        def __init__(self) -> None:
            self.expiry = credential_timer.CredentialTimer(
                lambda: clock.now, self.end, self.warn, clock.later
            )

        def end(self) -> None: ...

        def warn(self, _left_s: float) -> None: ...

    holder = Holder()
    watched, there = holder.expiry, weakref.ref(holder)
    watched.start(4600.0)
    watched.cancel()
    with collected.by_hand():
        del holder
        assert there() is None
    watched.start(4600.0)
    assert clock.next is None
