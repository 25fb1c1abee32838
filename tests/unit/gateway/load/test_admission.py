"""Who is let in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.load import admission
from gateway.parsing import command, responses_api
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Limits, Pool
from tests.support import cases

POOLS = Catalog((Pool("default", ("m",), 8192, 1024),))
LIMITS = Limits(responses_per_principal=2, responses=10)
INTERACTIVE = responses_api.parse({"input": "x" * 400}, POOLS)
BATCH = responses_api.parse({"input": "x", "service_tier": "flex"}, POOLS)


def running(**of: int) -> admission.Running:
    counts = admission.Running()
    for principal, number in of.items():
        for i in range(number):
            counts.add(f"{principal}-{i}", principal, i % 3)
    return counts


def check(
    create: command.Create = INTERACTIVE,
    now: admission.Running | None = None,
    *,
    refusing: bool = False,
    writable: bool = True,
    wait_s: float | None = None,
) -> errors.ApiError | None:
    return admission.check(
        create,
        "alice",
        now or running(),
        LIMITS,
        refusing=refusing,
        writable=writable,
        wait_s=wait_s,
    )


def asking(**fields: Any) -> command.Create:
    return responses_api.parse({"input": "x", **fields}, POOLS)


WAIT_S = 60.0


class TestCheck:
    def test_let_in(self) -> None:
        assert check() is None

    @pytest.mark.parametrize(
        ("flags", "status"), [({"refusing": True}, 503), ({"writable": False}, 503)]
    )
    def test_unavailable_says_when_to_come_back(self, flags: dict[str, Any], status: int) -> None:
        error = check(**flags)
        assert error is not None
        assert error.status == status
        assert int(error.headers["retry-after"]) >= 1

    def test_one_principals_bound_does_not_touch_another(self) -> None:
        assert check(now=running(bob=5)) is None
        error = check(now=running(alice=2))
        assert error is not None
        assert error.status == 429

    def test_the_bound_of_all_and_batch_earlier(self) -> None:
        assert check(BATCH, running(bob=6)) is None
        assert (error := check(BATCH, running(bob=7))) is not None
        assert error.status == 429
        assert check(INTERACTIVE, running(bob=9)) is None
        assert check(INTERACTIVE, running(bob=10)) is not None

    def test_a_wait_longer_than_the_deadline_is_told(self) -> None:
        assert check(BATCH, wait_s=WAIT_S) is None, "60 s of 600"
        batch = asking(service_tier="flex", deadline_ms=59_000)
        error = check(batch, wait_s=WAIT_S)
        assert error is not None
        assert (error.status, error.code) == (429, "rate_limit_exceeded")
        assert int(error.headers["retry-after"]) == 60
        assert "60s, after its deadline of 59s" in error.message

    def test_a_wait_that_leaves_no_room_for_an_error_is_told_too(self) -> None:
        """Of those that were taken up to their deadline, one in four expired in the queue."""
        deadline_ms = 60_000 / admission.SURE
        batch = asking(service_tier="flex", deadline_ms=round(deadline_ms) + 1)
        assert check(batch, wait_s=WAIT_S) is None
        batch = asking(service_tier="flex", deadline_ms=round(deadline_ms) - 1)
        error = check(batch, wait_s=WAIT_S)
        assert error is not None
        assert "60s, too close to its deadline of 99.999s" in error.message

    def test_a_warm_up_waits_for_no_engine(self) -> None:
        body = {"input": "x", "generate": False, "deadline_ms": 1, "service_tier": "flex"}
        assert check(responses_api.parse(body, POOLS, websocket=True), wait_s=WAIT_S) is None

    def test_where_nothing_is_known_a_request_may_wait_in_the_log(self) -> None:
        assert check(asking(deadline_ms=1), wait_s=None) is None


class TestRunning:
    def test_counts_by_principal_and_partition(self) -> None:
        counts = running(alice=3, bob=1)
        assert (
            len(counts),
            counts.count("alice"),
            counts.count("bob"),
            counts.count("eve"),
        ) == (
            4,
            3,
            1,
            0,
        )
        assert [counts.count_on(p) for p in range(4)] == [2, 1, 1, 0]

    def test_add_and_end_are_idempotent_and_leave_nothing_behind(self) -> None:
        counts = running(alice=2)
        counts.add("alice-0", "alice", 0)
        for _ in range(2):
            counts.end("alice-0")
        assert counts.count("alice") == 1
        counts.end("alice-1")
        assert (len(counts), counts.busy(0)) == (0, {})
        assert [counts.count_on(p) for p in range(3)] == [0, 0, 0]


def test_the_cost_is_prompt_and_whole_answer() -> None:
    assert admission.cost(INTERACTIVE) == 100 + 1024
    assert (
        admission.cost(
            responses_api.parse({"input": "xxxx", "generate": False}, POOLS, websocket=True)
        )
        == 1
    )


@cases.each(
    ("seconds", "text"),
    [(0, "0ms"), (0.012, "12ms"), (1, "1s"), (59.6, "1m0s"), (360, "6m0s"), (61, "1m1s")],
)
def test_durations_as_sdks_read_them(seconds: float, text: str) -> None:
    assert admission.duration(seconds) == text


def test_rate_headers() -> None:
    headers = admission.headers(Limits(requests_rate=2, requests_burst=10), 4.7)
    assert headers == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "3s",
    }


def test_the_busiest_principals_are_those_with_many_responses() -> None:
    running = admission.Running()
    for n in range(3):
        running.add(f"resp_{n}", "alice", 0)
    running.add("resp_b", "bob", 0)
    assert running.busy(2) == {"alice": 3}
