"""Which store a setting means, and that one that is away is tried again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines import servers
from pipelines.analytics import clickhouse, jobs, results, store


def test_a_url_is_clickhouse_and_a_path_is_a_file(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    server = store.opened("http://ada@127.0.0.1:1/results")
    assert isinstance(server, clickhouse.ClickHouse)
    server.close()
    file = store.opened(str(tmp_path / "a.duckdb"))
    assert file.positions() == {}
    file.close()


class Away:
    """A store of which each second call gets no answer."""

    def __init__(self) -> None:
        self.calls = 0
        self.folded: list[tuple[str, int, int]] = []
        self.released = 0

    def _answer(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise servers.Unavailable("away")

    def close(self) -> None:
        """Nothing."""

    def release(self) -> None:
        self.released += 1

    def positions(self) -> Mapping[tuple[str, int], int]:
        self._answer()
        return {("t.sessions", 0): 4}

    def fold(
        self,
        result: jobs.Result,
        topic: str,
        partition: int,
        changes: Sequence[results.Change],
        behind: int,
    ) -> None:
        self._answer()
        self.folded.append((result.name, partition, behind))

    def rows(self, result: jobs.Result) -> Any:
        return {}


async def test_a_store_that_is_away_loses_no_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began: list[Any] = []

    async def follow(
        bootstrap: str, topics: Any, positions: Any, *, once: bool
    ) -> AsyncIterator[Any]:
        began.append(positions)
        for offset in (4, 6):
            yield ("t.sessions", 0), [SimpleNamespace(offset=offset, key=b"garbage", value=None)]

    monkeypatch.setattr(results, "follow", follow)
    monkeypatch.setattr(store, "RETRY_S", 0.0)
    away = Away()
    await store.run(away, "k:1", "t", once=True)
    assert began == [{("t.sessions", 0): 4}]
    assert away.folded == [("sessions", 0, 5), ("sessions", 0, 7)]
    assert capsys.readouterr().err.count("away") == 3
    assert away.released == 3  # before it waits for anything, and behind each batch


@pytest.mark.parametrize("given", [["--kafka", "k:1"], []])
def test_kafka_is_named_by_an_option_or_by_the_environment(
    given: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod by the variable, whose address the gate compares with the listener."""
    asked = []

    async def run(_: object, bootstrap: str, prefix: str, *, once: bool) -> None:
        asked.append((bootstrap, prefix, once))

    monkeypatch.setattr(store, "run", run)
    monkeypatch.setattr(store, "opened", lambda _: Away())
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
