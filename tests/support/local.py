"""`LocalKafka` and `LocalRedis`: the programs `tailrace up` starts, in a temporary folder.

with LocalKafka() as kafka:
    kafka.bootstrap            # "127.0.0.1:41234"
    kafka.apply_topics()       # the table of tailrace/protocol/topics.py
    kafka.kill(); kafka.start()  # the log is still there, and so is the port
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace import log as wire_log
from tailrace.local import kafka_broker, paths, ports, redis_server, server_process
from tests.support import waiting

PARTITIONS = 8

# For tests that kill the broker: by default a killed broker may not register again until its old
# session has run out (9 s).
QUICK_RETURN = {"broker.heartbeat.interval.ms": "500", "broker.session.timeout.ms": "2000"}


def _run_id() -> str:
    return f"test-{secrets.token_hex(6)}"


def _threads_stopped(pid: int) -> bool:
    """Whether the kernel gives state T for every thread (proc(5))."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended
            if stat.read_text().rpartition(")")[2].split()[0] not in "TtZ":
                return False
    return True


class _Local:
    """A server in a folder that goes away with it. `_server` is made by the subclass, over
    `_folder`."""

    _server: server_process.ServerProcess

    def __init__(self, prefix: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix=prefix))

    @property
    def pid(self) -> int:
        assert self._server.child is not None
        return self._server.child.pid

    def start(self) -> None:
        """Start and wait until it serves; also after kill() or stop(), on the same port."""
        self._server.start()
        self._server.wait_ready()

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """SIGKILL."""
        self._server.kill()

    def pause(self) -> None:
        """SIGSTOP, and wait until it does nothing any more.

        The signal goes to one thread, which stops the others once it has a processor. On a busy
        machine they answer requests until then.
        """
        pid = self.pid
        os.kill(pid, signal.SIGSTOP)
        waiting.eventually_blocking(
            lambda: _threads_stopped(pid), f"process {pid} is stopped", every_s=0.001
        )

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def output(self) -> str:
        """Its log, for a test that wants to show it."""
        return self._server.log.read_text(errors="replace")

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def apply_topics(
    kafka: str, pools: Iterable[str] = ("default",), partitions: int = PARTITIONS
) -> None:
    """What `tailrace topics apply` does."""

    def apply() -> None:
        applying = wire_log.apply_topics(kafka, tuple(pools), partitions=partitions, replication=1)
        asyncio.run(applying)

    # Aside, because a browser that a test drives has a loop in the test's thread.
    with futures.ThreadPoolExecutor(1) as aside:
        aside.submit(apply).result()


class LocalKafka(_Local):
    """One real broker. `settings` are added to its server.properties; its log stays over kill() and
    start()."""

    def __init__(self, settings: Mapping[str, str] | None = None, heap_mb: int = 256) -> None:
        super().__init__("tailrace-kafka-")
        port = ports.free_port()
        self._server = self._broker = kafka_broker.Broker(
            self._folder / "kafka",
            port,
            ports.free_port({port}),
            run=_run_id(),
            log=self._folder / "kafka.log",
            heap_mb=heap_mb,
            extra=settings,
        )
        self._format()

    def _format(self) -> None:
        """A JVM start saved: the formatted folder holds no path and no port, so one serves all (one
        node each, so one cluster id too)."""
        golden = paths.cache() / "golden" / f"kafka-{paths.KAFKA_VERSION}"
        target = self._folder / "kafka" / "log"
        if (golden / "meta.properties").exists():
            shutil.copytree(golden, target)
            return
        self._broker.prepare()
        golden.parent.mkdir(parents=True, exist_ok=True)
        fresh = golden.with_name(f"{golden.name}.{os.getpid()}")
        shutil.copytree(target, fresh)
        try:
            fresh.rename(golden)
        except OSError:  # another run was first
            shutil.rmtree(fresh)

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def apply_topics(
        self, pools: Iterable[str] = ("default",), partitions: int = PARTITIONS
    ) -> None:
        apply_topics(self.bootstrap, pools, partitions)


class LocalRedis(_Local):
    """One real Redis, persisting nothing: after kill() and start() it is empty."""

    def __init__(self) -> None:
        super().__init__("tailrace-redis-")
        self._server = self._redis = redis_server.Server(
            self._folder, ports.free_port(), run=_run_id(), log=self._folder / "redis.log"
        )

    @property
    def url(self) -> str:
        return self._redis.url

    @property
    def port(self) -> int:
        return self._redis.port
