"""The vector database on a real Milvus server.

Of two kinds, each asked for by a variable: a server that runs (`TAILRACE_TEST_MILVUS`, a URL as in
TAILRACE_VECTORS), and one that is started and killed here (`tests/support/milvus_server.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tailrace.vectors import contract, milvus
from tests.support import milvus_server, waiting
from tests.support.vectors_contract import ALICE, VectorsContract, passage, vector

URL: Final = os.environ.get("TAILRACE_TEST_MILVUS", "")
BATCH: Final = 500  # rows of one fold
BATCHES: Final = 6
BACK_S: Final = 90.0  # a server that was killed loads its collections again
DOWN_S: Final = 1.0

T = TypeVar("T")

pytestmark = pytest.mark.nightly

needs_server = pytest.mark.skipif(
    not URL, reason="a Milvus server is NOT tested: TAILRACE_TEST_MILVUS has no URL"
)
needs_package = pytest.mark.skipif(
    not milvus_server.PYTHON,
    reason="kills of a Milvus server are NOT tested: TAILRACE_TEST_MILVUS_PYTHON names no Python",
)


@contextlib.contextmanager
def opened(url: str, tag: bytes) -> Iterator[milvus.Milvus]:
    """A database of a log of its own, and nothing of it is left behind."""
    pymilvus = pytest.importorskip("pymilvus", reason="needs tailrace[retrieval]")
    found = milvus.open_database(url, "one", tag)
    found.open()
    try:
        yield found
    finally:
        found.close()
        client = pymilvus.MilvusClient(uri=url)
        for name in client.list_collections():
            if tag.hex() in name:
                client.drop_collection(name)
        client.close()


@needs_server
class TestServer(VectorsContract):
    @pytest.fixture
    def tag(self) -> bytes:
        return secrets.token_bytes(4)

    @pytest.fixture
    def database(self, tag: bytes) -> Iterator[milvus.Milvus]:
        with opened(URL, tag) as found:
            yield found

    def test_another_gateway_sees_what_the_first_one_folded(
        self, database: milvus.Milvus, tag: bytes
    ) -> None:
        """Both have the same server; the second one begins where the first one stopped."""
        database.fold([passage(number) for number in range(3)], [], {0: 3})
        second = milvus.open_database(URL, "two", tag)
        second.open()
        assert second.positions() == {0: 3}
        second.fold([], [passage(1).key], {0: 4})
        assert database.numbers(ALICE, "m") == second.numbers(ALICE, "m") == {0, 2}
        second.close()


def answered(call: Callable[[], T]) -> T:
    """Call until the server answers, as `gateway/retrieval/passages.py` does."""
    found: list[T] = []

    def tried() -> bool:
        with contextlib.suppress(contract.Unavailable):
            found.append(call())
        return bool(found)

    waiting.eventually_blocking(tried, lambda: "the server answers", within_s=BACK_S)
    return found[0]


@needs_package
@pytest.mark.timeout(400)
def test_kills_in_the_middle_of_folds_lose_nothing_and_bring_back_nothing(tmp_path: Path) -> None:
    """What a server has acknowledged needs no flush: it is in its own log."""
    server = milvus_server.MilvusServer(tmp_path / "milvus")
    server.start()
    database = milvus.open_database(server.url, "one", secrets.token_bytes(4))
    left: set[int] = set()

    def folded(batch: int) -> None:
        rows = [passage(batch * BATCH + n, (1.0, n, batch)) for n in range(BATCH)]
        gone = [row.key for row in rows[:20]]
        if batch:  # and some of what was there before
            gone += [passage((batch - 1) * BATCH + n).key for n in range(20, 25)]
        answered(database.open)
        answered(lambda: database.fold(rows, [], {0: batch * BATCH + 1}))
        answered(lambda: database.fold([], gone, {0: (batch + 1) * BATCH}))
        left.difference_update(range(batch * BATCH - BATCH + 20, batch * BATCH - BATCH + 25))
        left.update(range(batch * BATCH + 20, (batch + 1) * BATCH))

    try:
        for batch in range(BATCHES):
            killer = threading.Timer(0.05 * batch, again, (server,))
            if batch in (2, 4):
                killer.start()
            folded(batch)
            if batch in (2, 4):
                killer.join()
                assert answered(database.positions) == {0: (batch + 1) * BATCH}
                assert answered(lambda: database.numbers(ALICE, "m")) == left
        hits = answered(lambda: database.search(ALICE, "m", vector(1, 0, 0), contract.MAX_ROWS))
        assert sorted(hit.number for hit in hits) == sorted(left)
    finally:
        database.close()
        server.stop()


def again(server: milvus_server.MilvusServer) -> None:
    """Kill it, and start it again a moment later."""
    server.kill()
    threading.Event().wait(DOWN_S)
    server.start()
