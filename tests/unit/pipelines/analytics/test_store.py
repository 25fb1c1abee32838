"""Which store a setting means, and that one that is away is tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines import servers
from pipelines.analytics import clickhouse, jobs, results, store
from tailrace import log
from tailrace.log import Position
from tests.support.memory_log import MemoryLog


def test_a_url_is_clickhouse_and_a_path_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    server = store.open_store("http://ada@127.0.0.1:1/results")
    assert isinstance(server, clickhouse.ClickHouse)
    server.close()
    file = store.open_store(str(tmp_path / "a.duckdb"))
    assert file.positions() == {}
    file.close()


class Away:
    """A store of which each second call gets no answer."""

    def __init__(self) -> None:
        self.calls = 0
        self.folded: list[tuple[str, int, int]] = []
        self.released = 0
        self.forgotten = 0

    def _answer(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise servers.Unavailable("away")

    def close(self) -> None:
        """Nothing."""

    def release(self) -> None:
        self.released += 1

    def positions(self) -> Mapping[tuple[str, int], Position]:
        self._answer()
        return {} if self.forgotten else {("t.sessions", 0): Position(4)}

    def forget(self) -> None:
        self._answer()
        self.forgotten += 1

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        behind: Position,
    ) -> None:
        self._answer()
        self.folded.append((result.name, partition, behind.next))

    def rows(self, result: jobs.Result) -> Any:
        return {}


class Topics:
    """Topics of results. Each follower gets the next of these offsets, in batches of one.

    Attributes:
        gone: what the next looks say of topics that were rolled back.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *offsets: Sequence[int]) -> None:
        self.began: list[Any] = []
        self.gone: list[list[str]] = []
        self._offsets = list(offsets)
        monkeypatch.setattr(results, "follow", self._follow)
        monkeypatch.setattr(store, "find_rolled_back", self._rolled_back)
        monkeypatch.setattr(store, "RETRY_S", 0.0)

    async def _follow(
        self, bootstrap: str, topics: Any, positions: Any, *, once: bool
    ) -> AsyncIterator[Any]:
        self.began.append(dict(positions))
        for offset in self._offsets.pop(0):
            yield ("t.sessions", 0), [log.Record("t.sessions", 0, offset, 1, b"garbage", None, ())]

    async def _rolled_back(self, bootstrap: str, positions: Any) -> list[str]:
        return self.gone.pop(0) if self.gone else []


async def test_a_store_that_is_away_loses_no_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = Topics(monkeypatch, [4, 6])
    away = Away()
    await store.run(away, "k:1", "t", once=True)
    assert topics.began == [{("t.sessions", 0): Position(4)}]
    assert away.folded == [("sessions", 0, 5), ("sessions", 0, 7)]
    output = capsys.readouterr().err
    assert output.count("away") == 3
    assert "1 records are not results and left out, from t.sessions/0/6 on" in output
    assert away.released == 3  # before it waits for anything, and behind each batch


async def test_results_are_folded_anew_when_topics_were_rolled_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was written afterwards was left out, silently, up to the former position: seen at the
    start, and while it follows."""
    topics = Topics(monkeypatch, [0, 1, 2, 0], [0])
    topics.gone = [["t.sessions"], ["t.sessions"]]
    away = Away()
    await store.run(away, "k:1", "t", once=True)
    assert topics.began == [{}, {}]
    assert away.forgotten == 2
    assert [at for _, _, at in away.folded] == [1, 2, 3, 1]
    assert "t.sessions do not hold what was folded" in capsys.readouterr().err


@pytest.mark.parametrize("later", [0, 3], ids=["shorter", "other records"])
async def test_a_topic_that_was_rolled_back_is_named(later: int) -> None:
    memory = MemoryLog()
    at = {}
    for topic in ("a", "b"):
        memory.create_topic(topic, 2)
        for number in range(3):
            memory.put(topic, 1, b"k", b"%d" % number)
        at[topic, 1] = Position(3, log.Mark.from_record(memory.records(topic, 1)[2]))
    assert await store.rolled_back_topics(memory.offsets(), memory.replays(), at) == []
    memory.roll_back("b", 1, 1)
    for number in range(later):
        memory.put("b", 1, b"k", b"later %d" % number)
    assert await store.rolled_back_topics(memory.offsets(), memory.replays(), at) == ["b"]


@pytest.mark.parametrize("given", [["--kafka", "k:1"], []])
def test_kafka_is_named_by_an_option_or_by_the_environment(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod by the variable, whose address the gate compares with the listener."""
    asked = []

    async def run(_: object, bootstrap: str, prefix: str, *, once: bool) -> None:
        asked.append((bootstrap, prefix, once))

    monkeypatch.setattr(store, "run", run)
    monkeypatch.setattr(store, "open_store", lambda _: Away())
    monkeypatch.setattr("sys.argv", ["store", "http://ada@127.0.0.1:1/results", *given])
    monkeypatch.setenv("TAILRACE_KAFKA", "k:2")
    store.main()
    monkeypatch.delenv("TAILRACE_KAFKA")
    if given:
        store.main()
    else:
        with pytest.raises(SystemExit):
            store.main()
    assert asked == [("k:1" if given else "k:2", "analytics", False)] * (1 + len(given) // 2)
