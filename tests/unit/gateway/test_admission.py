"""Who is let in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import admission
from gateway.parsing import command, responses_api
from tailrace.protocol import errors
from tailrace.settings.shapes import Limits, Pool

POOLS = (Pool("default", ("m",), 8192, 1024),)
LIMITS = Limits(responses_per_principal=2, responses=10)
INTERACTIVE = responses_api.parse({"input": "x" * 400}, POOLS)
BATCH = responses_api.parse({"input": "x", "service_tier": "flex"}, POOLS)


def running(**of: int) -> admission.Running:
    counted = admission.Running()
    for principal, number in of.items():
        for i in range(number):
            counted.add(f"{principal}-{i}", principal, i % 3)
    return counted


def check(
    create: command.Create = INTERACTIVE,
    now: admission.Running | None = None,
    *,
    refusing: bool = False,
    writable: bool = True,
    workers: Any = (),
) -> errors.ApiError | None:
    return admission.check(
        create,
        "alice",
        now or running(),
        LIMITS,
        refusing=refusing,
        writable=writable,
        workers=workers,
        deadline_s=600,
    )


def worker(queued: float, rate: float) -> dict[str, Any]:
    return {"state": "ready", "queued": queued, "tokens_per_s": rate}


class TestCheck:
    def test_let_in(self) -> None:
        assert check() is None

    @pytest.mark.parametrize(
        ("flags", "status"), [({"refusing": True}, 503), ({"writable": False}, 503)]
    )
    def test_unavailable_says_when_to_come_back(self, flags: dict[str, Any], status: int) -> None:
        refused = check(**flags)
        assert refused is not None
        assert refused.status == status
        assert int(refused.headers["retry-after"]) >= 1

    def test_one_principals_bound_does_not_touch_another(self) -> None:
        assert check(now=running(bob=5)) is None
        refused = check(now=running(alice=2))
        assert refused is not None
        assert refused.status == 429

    def test_the_bound_of_all_and_batch_earlier(self) -> None:
        assert check(BATCH, running(bob=6)) is None
        assert (refused := check(BATCH, running(bob=7))) is not None
        assert refused.status == 429
        assert check(INTERACTIVE, running(bob=9)) is None
        assert check(INTERACTIVE, running(bob=10)) is not None

    def test_a_queue_longer_than_the_deadline(self) -> None:
        assert check(workers=[worker(500, 1024)]) is None
        refused = check(workers=[worker(700, 1024)])
        assert refused is not None
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) == 400

    def test_batch_gives_way_at_seventy_percent(self) -> None:
        assert check(BATCH, workers=[worker(500, 1024)]) is not None

    @pytest.mark.parametrize(
        "workers",
        [
            [],
            [worker(1000, 0)],
            [{"state": "loading"}],
            [worker(float("-inf"), -5)],
            [{"queued": "x", "tokens_per_s": True}],
        ],
    )
    def test_where_nothing_is_known_a_request_may_wait_in_the_log(self, workers: Any) -> None:
        assert check(workers=workers) is None


class TestRunning:
    def test_counts_by_principal_and_partition(self) -> None:
        counted = running(alice=3, bob=1)
        assert (len(counted), counted.of("alice"), counted.of("bob"), counted.of("eve")) == (
            4,
            3,
            1,
            0,
        )
        assert [counted.on(p) for p in range(4)] == [2, 1, 1, 0]

    def test_add_and_end_are_idempotent_and_leave_nothing_behind(self) -> None:
        counted = running(alice=2)
        counted.add("alice-0", "alice", 0)
        for _ in range(2):
            counted.end("alice-0")
        assert counted.of("alice") == 1
        counted.end("alice-1")
        assert (len(counted), counted._by_principal, counted._by_partition) == (0, {}, {})


def test_the_cost_is_prompt_and_whole_answer() -> None:
    assert admission.cost(INTERACTIVE) == 100 + 1024
    assert (
        admission.cost(
            responses_api.parse({"input": "xxxx", "generate": False}, POOLS, websocket=True)
        )
        == 1
    )


@pytest.mark.parametrize(
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
