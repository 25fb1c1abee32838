"""The vector database on real milvus-lite: in a file, and behind a URL, as Milvus is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.local import ports
from tailrace.vectors import contract, milvus
from tests.support import waiting
from tests.support.vectors_contract import ALICE, VectorsContract, passage, vector

pymilvus = pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")
TAG = b"\1\2\3\4"


@contextlib.contextmanager
def opened(url: str, name: str = "one", tag: bytes = TAG) -> Iterator[milvus.Milvus]:
    found = milvus.open_database(url, name, tag)
    found.open()
    try:
        yield found
    finally:
        found.close()


class TestFile(VectorsContract):
    @pytest.fixture
    def database(self, tmp_path: Path) -> Iterator[milvus.Milvus]:
        with opened(str(tmp_path / "vectors")) as found:
            yield found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = ports.free_port()
    data = tmp_path_factory.mktemp("server") / "all.db"
    command = (
        "from milvus_lite.adapter.grpc.server import run_server;"
        f"run_server({str(data)!r}, host='127.0.0.1', port={port})"
    )
    server = subprocess.Popen([sys.executable, "-c", command])
    try:
        waiting.eventually_blocking(
            lambda: listening(port), lambda: "a server listens", within_s=30
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


class TestServer(VectorsContract):
    @pytest.fixture
    def database(self, url: str, request: pytest.FixtureRequest) -> Iterator[milvus.Milvus]:
        # A log of its own for each test: another tag, other collections.
        tag = abs(hash(request.node.name)).to_bytes(8, "big")[-4:]
        with opened(url, tag=tag) as found:
            yield found


def test_a_server_is_never_asked_to_flush_and_each_call_has_an_end(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fold asked for a flush: newer servers allow one in 10 s, and 2.3.5 none for half a
    minute after a kill. Without a limit the client tries a call for minutes, and searches wait
    behind it."""
    asked: list[tuple[str, Any]] = []

    def watched(method: str) -> None:
        real = getattr(pymilvus.MilvusClient, method)

        def call(client: Any, *args: Any, **named: Any) -> Any:
            asked.append((method, named.get("timeout")))
            return real(client, *args, **named)

        monkeypatch.setattr(pymilvus.MilvusClient, method, call)

    for each in ("flush", "upsert", "query"):
        watched(each)
    for where, wanted in (
        (url, {("upsert", milvus.ANSWER_S), ("query", milvus.ANSWER_S)}),
        (str(tmp_path), {("upsert", None), ("flush", None), ("query", None)}),
    ):
        asked.clear()
        with opened(where, tag=b"\5\5\5\5") as found:
            found.fold([passage(0)], [], {0: 1})
            assert found.numbers(ALICE, "m") == {0}
        assert set(asked) == wanted


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_it_is_there_again_after_it_was_closed_and_another_log_has_none_of_it(
    tmp_path: Path,
) -> None:
    url = str(tmp_path)
    with opened(url) as found:
        found.fold([passage(number) for number in range(3)], [], {0: 3})
    with opened(url) as found:
        assert found.numbers(ALICE, "m") == {0, 1, 2}
        assert found.positions() == {0: 3}
        found.fold([], [passage(1).key], {})
        assert len(found.search(ALICE, "m", vector(1, 0, 0), 9)) == 2
    with opened(url, tag=b"\0\0\0\0") as other:
        assert other.positions() == {}
        assert other.texts(ALICE) == []
    with opened(url, "two") as other:  # a file of its own
        assert other.positions() == {}


KILLED = """
import os, signal, sys
from tailrace.vectors import milvus
from tests.support.vectors_contract import passage
found = milvus.open_database(sys.argv[1], "one", bytes([1, 2, 3, 4]))
found.open()
for batch in range(4):
    rows = [passage(batch * 100 + number, (1.0, number, batch)) for number in range(100)]
    if batch == 3:
        found._call("upsert", found._collection("m", 3), [milvus._row(each) for each in rows[:50]])
        os.kill(os.getpid(), signal.SIGKILL)
    found.fold(rows, [], {0: (batch + 1) * 100})
"""


def test_a_kill_in_the_middle_of_a_batch_loses_nothing_that_its_position_says(
    tmp_path: Path,
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], env=os.environ, timeout=60
    )
    assert ended.returncode == -signal.SIGKILL
    with opened(str(tmp_path)) as found:
        assert found.positions() == {0: 300}
        assert found.numbers(ALICE, "m") >= set(range(300))
        rows = [passage(300 + number, (1.0, number, 3)) for number in range(100)]
        found.fold(rows, [], {0: 400})
        assert found.numbers(ALICE, "m") == set(range(400))
        assert len(found.texts(ALICE)) == 400


def test_a_server_that_is_away_is_unavailable_and_comes_back() -> None:
    found = milvus.open_database(f"http://u:p@127.0.0.1:{ports.free_port()}", "one", TAG)
    with pytest.raises(contract.Unavailable, match="cannot open") as refused:
        found.open()
    assert "u:p" not in str(refused.value)
    with pytest.raises(contract.Unavailable, match="not open"):
        found.positions()
