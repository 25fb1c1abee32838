"""The broker and the Redis of a deployment: started here, or given by address and only used."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from tailrace import settings
from tailrace.local import kafka_broker, paths, ports, processes, redis_server, state

KAFKA_PORT = 9092
REDIS_PORT = 6379
POLL_S = 0.05

# Another program may bind a port after it was found free (two deployments start at once).
PORT_TRIES = 5
PORT_TAKEN = "Address already in use"

LocalPart = kafka_broker.Broker | redis_server.Server


def fresh_log(path: Path) -> Path:
    """Return `path` for a new log file. The former run's log gets another name."""
    if path.exists():
        path.replace(path.with_suffix(".previous.log"))
    return path


def without_password(url: str) -> str:
    """The URL for display: only scheme, host and port if it holds a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port}" if parts.password else url


def _first_free(port: int) -> int:
    return port if ports.claim(port) else ports.free_port()


class Infrastructure:
    """The broker and the Redis of one deployment.

    Attributes:
        kafka: the broker's address for services; empty before `start` unless it was given.
        redis: the URL of Redis; empty before `start` unless it was given.
    """

    def __init__(
        self,
        data: paths.Data,
        run: str,
        say: Callable[[str], None],
        status: Callable[[str], None],
    ) -> None:
        environment = settings.command()
        self.kafka, self.redis = environment.kafka, environment.redis
        self._kafka_heap_mb = environment.kafka_heap_mb
        self._data = data
        self._run = run
        self._say = say
        self._status = status
        # What was started here, by name, in the order of starting.
        self._parts: dict[str, LocalPart] = {}

    @property
    def kafka_port(self) -> int:
        """The port of the broker started here; 0 without one."""
        return self._parts["kafka"].port if "kafka" in self._parts else 0

    def program(self, name: str) -> LocalPart:
        """The part of this name that was started here."""
        return self._parts[name]

    def start(
        self,
        kafka_port: int,
        *,
        record: Callable[[list[state.Part]], None],
        check: Callable[[], None],
    ) -> None:
        """Start the parts that are not configured and wait until they serve.

        Args:
            kafka_port: the broker's port of the last run; 0 for KAFKA_PORT.
            record: called with all parts as soon as their processes exist.
            check: called while waiting; it may raise to stop waiting.

        Raises:
            StartError: a part does not start in time.
        """
        if self.kafka:
            self._say(f"Kafka at {self.kafka} (given)")
        else:
            port = _first_free(kafka_port or KAFKA_PORT)
            self._parts["kafka"] = kafka_broker.Broker(
                self._data.kafka,
                port,
                ports.free_port({port}),
                run=self._run,
                log=fresh_log(self._data.logs / "kafka.log"),
                heap_mb=self._kafka_heap_mb,
            )
        if self.redis:
            self._say(f"Redis at {without_password(self.redis)} (given)")
        else:
            self._parts["redis"] = redis_server.Server(
                self._data.redis,
                _first_free(REDIS_PORT),
                run=self._run,
                log=fresh_log(self._data.logs / "redis.log"),
            )
        for part in self._parts.values():
            part.start()
        record(self.parts())
        self._wait(record, check)
        self.kafka, self.redis = (
            self._address("kafka", self.kafka),
            self._address("redis", self.redis),
        )

    def _address(self, name: str, address: str) -> str:
        part = self._parts.get(name)
        if part is None:
            return address
        return part.bootstrap if isinstance(part, kafka_broker.Broker) else part.url

    def _wait(self, record: Callable[[list[state.Part]], None], check: Callable[[], None]) -> None:
        waiting = dict(self._parts)
        tries = PORT_TRIES
        deadline = time.monotonic() + kafka_broker.START_S
        while waiting:
            check()
            self._status(f"starting {' and '.join(name.capitalize() for name in waiting)}")
            for name, part in list(waiting.items()):
                try:
                    if part.ready():
                        del waiting[name]
                        self._say(f"{name.capitalize()} is ready on port {part.port}")
                except processes.StartError:
                    tries -= 1
                    if tries == 0 or part.child is None or PORT_TAKEN not in part.child.output():
                        raise
                    self._move(part)
                    record(self.parts())
            if waiting and time.monotonic() >= deadline:
                name, part = next(iter(waiting.items()))
                last_lines = part.child.last_lines(50) if part.child else ""
                raise processes.StartError(
                    f"{name} was not ready after {kafka_broker.START_S:.0f} s; its "
                    f"last lines:\n{last_lines}"
                )
            time.sleep(POLL_S)

    def _move(self, part: LocalPart) -> None:
        """Start a part again on another port."""
        part.stop()
        part.port = ports.free_port()
        if isinstance(part, kafka_broker.Broker):
            part.controller_port = ports.free_port({part.port})
        part.start()

    def parts(self) -> list[state.Part]:
        """The parts started here, for the state file."""
        parts = []
        for name, part in self._parts.items():
            if part.child is None:
                continue
            role: state.Role = "kafka" if isinstance(part, kafka_broker.Broker) else "redis"
            identity = part.child.identity
            parts.append(
                state.Part(
                    name=name,
                    role=role,
                    pid=identity.pid,
                    started=identity.started,
                    address=self._address(name, ""),
                    log=str(part.log),
                    ready=True,
                    since=time.time(),
                )
            )
        return parts

    def stop(self) -> None:
        """Stop Redis first and the broker last. Each wait has a limit."""
        for part in reversed(self._parts.values()):
            part.stop()
