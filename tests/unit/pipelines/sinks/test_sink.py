"""A sink on the in-memory log: what it commits, and what faults of the server and the log do."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from pipelines import definition, samples, servers
from pipelines.sinks import clickhouse, opensearch, sink
from pipelines.sinks.target import Target
from tailrace.log import LogUnavailable, interfaces
from tests.support import metric
from tests.support.database_server import DatabaseServer
from tests.support.memory_log import MemoryLog
from tests.support.waiting import eventually

PIPELINE = definition.parse(samples.file("reviews"))
TOPIC, GROUP = "out", "g"


@pytest.fixture(params=["opensearch+http", "http"])
def target(request: pytest.FixtureRequest, server: DatabaseServer) -> Iterator[Target]:
    made = sink.open_target(f"{request.param}://{server.host}/name", PIPELINE, "output")
    yield made
    made.close()


@pytest.fixture
def index(server: DatabaseServer) -> Iterator[Target]:
    target = sink.open_target(f"opensearch+http://{server.host}/name", PIPELINE, "output")
    yield target
    target.close()


@pytest.fixture
async def memory() -> MemoryLog:
    made = MemoryLog()
    made.create_topic(TOPIC, 2)
    return made


def source(number: int) -> str:
    return f"in/0/{number}/1795632373843"


def put(memory: MemoryLog, *numbers: int) -> None:
    for number in numbers:
        headers = [("tailrace-source", source(number).encode())]
        value = json.dumps({"answer": f"secret {number}"}).encode()
        memory.put(TOPIC, number % 2, None, value, headers)


async def unheard(_: object) -> None:
    """Nothing."""


class Sleeps:
    """Remembers how long a sink would have slept."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


def joined(memory: MemoryLog) -> interfaces.GroupMember:
    return memory.group_consumer(GROUP, [TOPIC], assigned=unheard, revoked=unheard)


def new(
    memory: MemoryLog,
    target: Target,
    sleeps: Sleeps | None = None,
    *,
    member: interfaces.GroupMember | None = None,
    strict: bool = False,
) -> sink.Sink:
    return sink.Sink(
        *(target, TOPIC, GROUP, member or joined(memory), memory.offsets(), memory.replays()),
        strict=strict,
        sleep=sleeps or Sleeps(),
    )


def committed(memory: MemoryLog) -> dict[int, int]:
    there = memory.committed_offsets.get(GROUP, {})
    return {partition: offset for (_, partition), (offset, _) in there.items()}


async def test_once_ends_at_what_is_there_and_a_second_run_writes_nothing(
    memory: MemoryLog, target: Target, server: DatabaseServer
) -> None:
    put(memory, 0, 1, 2)
    memory.skip_to(TOPIC, 1, 5)  # the end of a transaction has an offset, and is no record
    member = joined(memory)
    first = new(memory, target, member=member)
    await first.run(once=True)
    await member.stop()
    assert set(server.rows) == {source(0), source(1), source(2)}
    assert (first.rows, committed(memory)) == (3, {0: 2, 1: 1})
    put(memory, 3)
    second = new(memory, target)
    await second.run(once=True)
    assert (second.rows, server.written) == (1, 4)


async def test_a_kill_behind_the_write_repeats_rows_and_changes_nothing(
    memory: MemoryLog, index: Target, server: DatabaseServer
) -> None:
    put(memory, 0, 1)
    member = joined(memory)
    await new(memory, index, member=member).run(once=True)
    await member.stop()
    memory.committed_offsets.clear()
    before = dict(server.rows)
    again = new(memory, index)
    await again.run(once=True)
    assert (again.rows, server.written, server.rows) == (2, 2, before)


async def test_nothing_is_committed_before_the_server_has_it(
    memory: MemoryLog, target: Target, server: DatabaseServer
) -> None:
    put(memory, 0)
    server.statuses = [503] * 1_000_000
    work = asyncio.create_task(new(memory, target).run())
    await eventually(lambda: len(server.asked) > 2, "the server was asked again", every_s=0.005)
    assert committed(memory) == {}
    server.statuses = []
    await eventually(lambda: committed(memory) == {0: 1}, "committed", every_s=0.005)
    assert set(server.rows) == {source(0)}
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def test_pauses_grow_up_to_a_bound_and_only_what_was_not_taken_is_sent_again(
    memory: MemoryLog, index: Target, server: DatabaseServer
) -> None:
    put(memory, 0, 2)
    server.items[source(2)] = [(429, "es_rejected_execution_exception")] * 8
    sleeps = Sleeps()
    done = new(memory, index, sleeps)
    await done.run(once=True)
    assert sleeps.slept == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [asked.body.count("\n") // 2 for asked in server.asked] == [2] + [1] * 8
    assert (done.rows, set(server.rows)) == (2, {source(0), source(2)})


async def test_a_row_that_is_refused_ends_a_strict_sink_before_the_commit(
    memory: MemoryLog, index: Target, server: DatabaseServer
) -> None:
    put(memory, 0, 2)
    server.items[source(2)] = [(400, "mapper_parsing_exception")]
    with pytest.raises(sink.RowRefused, match="out/0/1: mapper_parsing_exception") as error:
        await new(memory, index, strict=True).run(once=True)
    assert "secret" not in str(error.value)
    assert committed(memory) == {}


async def test_a_refused_row_is_left_out_counted_and_named(
    memory: MemoryLog,
    index: Target,
    server: DatabaseServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(memory, 0, 2)
    server.items[source(2)] = [(400, "mapper_parsing_exception")]
    done = new(memory, index)
    with caplog.at_level(logging.WARNING):
        await done.run(once=True)
    assert (done.rows, done.refusals, committed(memory)) == (1, 1, {0: 2})
    assert metric.value("tailrace_pipeline_sink_rows_total", group=GROUP, outcome="refused") >= 1
    assert "out/0/1: mapper_parsing_exception" in caplog.text
    assert "secret" not in caplog.text


async def test_a_server_that_refuses_everything_ends_the_sink_also_when_rows_may_be_left_out(
    memory: MemoryLog, target: Target, server: DatabaseServer
) -> None:
    put(memory, 0)
    server.statuses = [401]
    with pytest.raises(servers.Refused, match="401"):
        await new(memory, target).run(once=True)
    assert committed(memory) == {}


async def test_a_commit_without_an_answer_is_made_later(
    memory: MemoryLog, index: Target, server: DatabaseServer
) -> None:
    put(memory, 0)
    member = joined(memory)
    commit, failures = member.commit, [1, 2]

    async def failing(offsets: object) -> bool:
        if failures:
            failures.pop()
            raise LogUnavailable("no answer")
        return await commit(offsets)  # type: ignore[arg-type]

    member.commit = failing  # type: ignore[method-assign]
    await asyncio.wait_for(new(memory, index, member=member).run(once=True), 10)
    assert (committed(memory), server.written) == ({0: 1}, 1)


def test_the_url_says_which_database_and_the_group_names_it_without_the_user() -> None:
    search = "opensearch+https://ada@h:9200/reviews?password_file=/p"
    target = sink.open_target("opensearch+http://h:9200/i", PIPELINE, "output")
    assert isinstance(target, opensearch.Index)
    target.close()
    table = sink.open_target("http://h/d", definition.parse(samples.file("reviews")), "dead")
    assert isinstance(table, clickhouse.Table)
    table.close()
    assert sink.group(search, PIPELINE, "output") == (
        "tailrace.pipelines.reviews.sink.output.opensearch.h_3A9200_2Freviews"
    )
    groups = {
        sink.group(url, PIPELINE, what)
        for url in (search, "https://h:9200/reviews", "https://h:9200/other", "https://i/other")
        for what in ("output", "dead")
    }
    assert len(groups) == 8
    with pytest.raises(ValueError, match="expected http or https"):
        sink.open_target("ftp://h/d", PIPELINE, "output")


@pytest.mark.parametrize("later", [(), (20, 22, 24)], ids=["shorter", "other records"])
async def test_a_sink_ends_and_says_what_to_do_when_the_topic_was_rolled_back(
    later: tuple[int, ...], memory: MemoryLog, index: Target, server: DatabaseServer
) -> None:
    """It passed over what was written afterwards, silently, up to its former position."""
    put(memory, 0, 2, 4)
    member = joined(memory)
    await new(memory, index, member=member).run(once=True)
    await member.stop()
    memory.roll_back(TOPIC, 0, 1)
    put(memory, *later)
    with pytest.raises(sink.RolledBack, match=r"partitions \[0\].*delete the group g"):
        await new(memory, index).run(once=True)
    assert committed(memory) == {0: 3}
