"""The way into the log, over a writer that says no."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from gateway import (
    cache,
    idempotency,
    rate_limits,
    request_builder,
    request_parsing,
    request_writer,
    response_operations,
    stream_keeper,
    submission,
    worker_registry,
)
from tailrace import log, settings
from tailrace.auth.principal import Principal
from tailrace.protocol import errors, ids, records
from tailrace.settings.shapes import Pool
from tailrace.store.redis_store import StoreUnavailable
from tailrace.web import error_mapping

TAG = ids.incarnation_tag("one")
ALICE = Principal("https://tests", "alice", None, frozenset(), 2_000_000_000)
POOL = Pool("default", ("m",), 1000, 100)


class Writer:
    """Answers each append with the next of `outcomes`, then with offsets."""

    def __init__(self, *outcomes: Exception | log.Appended) -> None:
        self.connected = True
        self.outcomes = list(outcomes)
        self.appended: list[tuple[str, int, str, bytes]] = []

    def append(
        self, topic: str, partition: int, key: str, value: bytes, _headers: log.Headers = ()
    ) -> asyncio.Future[log.Appended]:
        done: asyncio.Future[log.Appended] = asyncio.get_running_loop().create_future()
        self.appended.append((topic, partition, key, value))
        outcome = self.outcomes.pop(0) if self.outcomes else log.Appended(len(self.appended) - 1, 0)
        if isinstance(outcome, Exception):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)
        return done


class Deliver:
    """As much of a delivery as a submission needs. `known` are ids it has streams of."""

    def __init__(self) -> None:
        self.ready = True
        self.preferred = (0,)
        self.known: set[str] = set()
        self.minted = 0

    async def mint(self, partition: int) -> str:
        self.minted += 1
        return ids.mint(
            ids.Address(TAG, partition, 0), self.minted.to_bytes(ids.RANDOM_BYTES, "big")
        )

    def open(self, request: records.Request) -> None:
        self.known.add(request.rid)

    def discard(self, rid: str) -> None:
        self.known.discard(rid)

    def acknowledged(self, rid: str) -> None:
        assert rid in self.known

    async def watch(self, rid: str, _owner: records.Owner, _after: int = -1) -> Any:
        return Subscription()


class Subscription:
    def close(self) -> None:
        pass


class Away:
    """Redis is away."""

    async def execute(self, *_command: Any, patient: bool = False) -> Any:
        raise StoreUnavailable("away")


class ByKey:
    """Knows nothing; remembers up to where it was asked."""

    def __init__(self) -> None:
        self.ends: list[int] = []

    async def rids(
        self, _pool: str, _priority: str, _partition: int, _key: Any, end: int = -1
    ) -> list[str]:
        self.ends.append(end)
        return []


def over(writer: Writer, deliver: Deliver, by_key: ByKey | None = None) -> submission.Submission:
    config = settings.gateway(
        {"TAILRACE_ISSUERS": __file__, "TAILRACE_POOLS": '{"default":{"models":["m"]}}'}
    )
    cached = cache.Cache(Away())  # type: ignore[arg-type]
    odd: Any = (deliver, writer, by_key)
    deliver_, writer_, index = odd

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        work.close()

    operations = response_operations.ResponseOperations(deliver_, writer_, cached)
    streams = stream_keeper.StreamKeeper(deliver_, operations, cached, spawn, 0.0)
    return submission.Submission(
        config.limits,
        request_builder.RequestBuilder(deliver_, cached, streams.running, 1),
        request_writer.RequestWriter(deliver_, writer_),
        rate_limits.RateLimiter(cached, config.limits),
        idempotency.Idempotency(cached, index, streams, operations, spawn),
        streams,
        worker_registry.WorkerRegistry(cached, ["default"]),
    )


def asked() -> request_parsing.Create:
    return request_parsing.of_responses({"input": "hi"}, [POOL])


async def test_a_record_that_the_writer_finds_too_large_is_the_clients_error_and_not_tried_again() -> (
    None
):
    writer, deliver = Writer(log.TooLarge("a record of 2 MiB")), Deliver()
    with pytest.raises(errors.ApiError) as refused:
        await over(writer, deliver).submit(asked(), ALICE)
    assert (refused.value.status, refused.value.code, refused.value.type) == (
        400,
        "context_length_exceeded",
        errors.INVALID_REQUEST,
    )
    assert len(writer.appended) == 1
    assert not deliver.known


async def test_a_failed_append_is_tried_once_more_with_the_same_record() -> None:
    writer, deliver = Writer(log.AppendFailed("ambiguous")), Deliver()
    run = await over(writer, deliver).submit(asked(), ALICE)
    assert writer.appended[0] == writer.appended[1]
    assert deliver.known == {run.rid}


async def test_an_append_that_fails_twice_is_unavailable_and_leaves_no_stream_behind() -> None:
    writer, deliver = Writer(log.AppendFailed("a"), log.AppendFailed("b")), Deliver()
    submit = over(writer, deliver)
    with pytest.raises(errors.ApiError) as refused:
        await submit.submit(asked(), ALICE)
    assert refused.value.status == 503
    assert not deliver.known
    assert len(submit.streams.running) == 0


def test_any_other_record_that_is_too_large_is_not_answered_as_if_trying_again_could_help() -> None:
    told = error_mapping.api_error("resp_1", log.TooLarge("a record of 2 MiB"))
    assert (told.status, told.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(("offset", "end"), [(4, 5), (0, 1), (-1, -1)])
async def test_with_a_key_the_log_is_asked_before_the_append_and_once_more_up_to_the_own_record(
    offset: int, end: int
) -> None:
    """aiokafka tells -1 for a retry that the broker had already taken: then up to the end."""
    by_key = ByKey()
    submit = over(Writer(log.Appended(offset, 0)), Deliver(), by_key)
    await submit.submit(request_parsing.with_key(asked(), "k"), ALICE)
    assert by_key.ends == [-1, end]


async def test_without_a_key_nobody_asks() -> None:
    by_key = ByKey()
    await over(Writer(), Deliver(), by_key).submit(asked(), ALICE)
    assert by_key.ends == []
