"""The system under fire: a real broker, a real Redis, several of each service, each of which can be
killed, stopped and started again. Also the room of `tests/attacks/` runs on it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tailrace.cli import record_keys
from tailrace.local import child_process, ports, processes
from tests.faults import link
from tests.support import cluster, gateway_process, local, waiting

ROOT = Path(__file__).parents[2]
MODEL = "scripted"
POOL = "default"
# Another model and its pool, which stands in for the first one where a stage has it.
FALLBACK_MODEL = "scripted-small"
FALLBACK_POOL = "fallback"
MODEL_LENGTH = 20_000  # tokens; the mixture's longest prompts have more, and lose older turns
LONG_ANSWER = 50_000  # tokens, on stages whose tests ask for a long answer
SESSION_MS = 2_000
# Of roles that are not called like theirs.
MODULES = {"archive": "tailrace.archiver", "fallback": "worker"}
WORKERS = ("worker", "fallback")  # roles of workers, by pool
READY_S = 150.0  # seconds on an idle machine; others may use this one too


def _pools(role: str, number: int, longest: int, *, fallback: bool) -> dict[str, Any]:
    """The pools as a service knows them. Each worker has another length, so that a successor would
    leave other messages out of a prompt than its predecessor did."""
    length = longest + (500 * number if role in WORKERS else 0)
    bounds = {"max_model_len": length, "max_output_tokens": longest}
    if not fallback:
        return {POOL: {"models": [MODEL], **bounds}}
    return {
        POOL: {"models": [MODEL], "fallback": [FALLBACK_POOL], **bounds},
        FALLBACK_POOL: {"models": [FALLBACK_MODEL], **bounds},
    }


@dataclass
class Service:
    """One service, over all its incarnations. `child` is None before the first start."""

    name: str
    role: str
    port: int
    admin_port: int
    environ: dict[str, str]
    log: Path
    child: child_process.ChildProcess | None = None
    starts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.returncode is None

    def ready(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.admin_port}/ready", timeout=1
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @property
    def connections(self) -> int:
        """Sockets that the process holds for its clients, in whatever state."""
        held = psutil.Process(self.pid).net_connections("tcp")
        return sum(c.laddr.port == self.port and c.status != psutil.CONN_LISTEN for c in held)

    @property
    def memory(self) -> int:
        """Bytes resident."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    def metric(self, name: str) -> float:
        """Sum over all labels; 0 while it was never set."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.admin_port}/metrics", timeout=5
        ) as answer:
            lines = answer.read().decode().split("\n")
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name} ", f"{name}{{"))
        )

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class LinkedKafka(local.LocalKafka):
    """A broker that names another address to each of some clients: a link of their own, which can
    fail alone.

    Clients reconnect to the advertised address of their listener, so a client that starts at a
    link stays on it.
    """

    def __init__(self, links: list[str], settings: dict[str, str] | None = None) -> None:
        super().__init__({**local.QUICK_RETURN, **(settings or {})})
        self.links: dict[str, link.Link] = {}
        chosen = {name: ports.free_port() for name in links}
        for name, port in chosen.items():
            self.links[name] = link.Link(lambda port=port: port)  # type: ignore[misc]
        broker = self._broker
        plain = [
            f"PLAINTEXT://127.0.0.1:{broker.port}",
            f"CONTROLLER://127.0.0.1:{broker.controller_port}",
        ]
        names = {name: f"L{i}" for i, name in enumerate(links)}
        broker.extra = {
            **(broker.extra or {}),
            "listeners": ",".join(
                [*plain, *(f"{names[n]}://127.0.0.1:{p}" for n, p in chosen.items())]
            ),
            "advertised.listeners": ",".join(
                [*plain, *(f"{names[n]}://127.0.0.1:{self.links[n].port}" for n in links)]
            ),
            "listener.security.protocol.map": ",".join(
                [
                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                    *(f"{n}:PLAINTEXT" for n in names.values()),
                ]
            ),
        }

    def address(self, name: str) -> str:
        """What the service of this name is told."""
        return f"127.0.0.1:{self.links[name].port}" if name in self.links else self.bootstrap

    def launch(self) -> None:
        """Start without waiting; from the main thread."""
        self._broker.start()

    def wait_ready(self) -> None:
        self._broker.wait_ready()

    def lose(self) -> None:
        """Its disk is empty; between `kill` and `launch`."""
        folder = self._broker.folder / "log"
        shutil.rmtree(folder)
        self._format()
        assert folder.exists()

    def copy(self) -> None:
        """Keep a copy of its disk; between `stop` and `launch`."""
        shutil.copytree(self._broker.folder / "log", self._broker.folder / "copy")

    def roll_back(self) -> None:
        """Its disk is the copy; between `kill` and `launch`."""
        folder = self._broker.folder / "log"
        shutil.rmtree(folder)
        (self._broker.folder / "copy").rename(folder)

    def close(self) -> None:
        super().close()
        for one in self.links.values():
            one.close()


@dataclass
class Stage:
    """Everything of one run. Start it with `open`, end it with `close`.

    Attributes:
        traced: whether services write transcripts (`tests.faults.traced`).
        issuers: more of them, beside the one that `token` is of.
        record_keys: records carry authentication tags.
        archive: its process runs too, on a SQLite file that gateways and pushes read.
        fallback: workers of a second pool, which answers and continues what the first one cannot.
        longest: bound on the tokens of prompt and answer together, and of an answer.
    """

    folder: Path
    workers: int = 2
    gateways: int = 2
    pushes: int = 2
    brokers: int = 1
    links: list[str] = field(default_factory=list)
    session_ms: int = SESSION_MS
    environ: dict[str, str] = field(default_factory=dict)
    worker_python: str = sys.executable
    worker_environ: dict[str, str] = field(default_factory=dict)
    environ_of: dict[str, dict[str, str]] = field(default_factory=dict)  # by a service's name
    ready_s: float = READY_S
    traced: bool = True
    issuers: list[dict[str, Any]] = field(default_factory=list)
    record_keys: bool = False
    archive: bool = False
    fallback: int = 0
    longest: int = MODEL_LENGTH
    services: dict[str, Service] = field(default_factory=dict)

    def open(self) -> Stage:
        """Start everything and wait until it is ready."""
        self.transcripts = self.folder / "transcripts"
        self.transcripts.mkdir(parents=True)
        self.run = f"test-{os.urandom(5).hex()}"
        self.kafka: Any = LinkedKafka(self.links) if self.brokers == 1 else cluster.Cluster()
        self.redis = local.LocalRedis()
        self.keys = gateway_process.Keys.make(self.folder)
        known = json.loads(self.keys.issuers.read_text())["issuers"]
        self.keys.issuers.write_text(json.dumps({"issuers": [*known, *self.issuers]}))
        try:
            self.kafka.start()
            self.redis.start()
            self._apply_topics()
            for role, count in (
                ("gateway", self.gateways),
                ("push", self.pushes),
                ("worker", self.workers),
                ("fallback", self.fallback),
                ("archive", int(self.archive)),
            ):
                for number in range(1, count + 1):
                    self.add(role, number)
            for service in self.services.values():
                self.start(service.name)
            self.wait_ready(seconds=self.ready_s)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for service in self.services.values():
            if service.child is not None and service.child.returncode is None:
                service.child.send(signal.SIGCONT)
                service.child.kill()
        processes.sweep(self.run)
        self.redis.close()
        self.kafka.close()

    def _apply_topics(self) -> None:
        sealing = self.folder / "session-key"
        sealing.write_text(secrets.token_urlsafe(32))
        self.environ = {**self.environ, "TAILRACE_SESSION_KEY": str(sealing)}
        if self.record_keys:
            keys = self.folder / "record-keys.json"
            record_keys.create(keys, accept_untagged=False, say=lambda _: None)
            self.environ = {**self.environ, "TAILRACE_RECORD_KEYS": str(keys)}
            named = [word for pool in self.pools for word in ("--pool", pool)]
            done = self.command("topics", "apply", "--bootstrap", self.kafka.bootstrap, *named)
            assert done.returncode == 0, done.stderr
            return
        with futures.ThreadPoolExecutor(
            1
        ) as thread:  # it has an event loop of its own, and the caller may have one
            thread.submit(self.kafka.apply_topics, self.pools).result()

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`tailrace *words` with the record keys of the services."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
        keys = {k: v for k, v in self.environ.items() if k == "TAILRACE_RECORD_KEYS"}
        return subprocess.run(
            [sys.executable, "-m", "tailrace", *words],
            cwd=ROOT,
            env={**kept, **keys, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def add(self, role: str, number: int) -> Service:
        """One more service, not yet started."""
        name = f"{role}-{number}"
        taken = {s.port for s in self.services.values()} | {
            s.admin_port for s in self.services.values()
        }
        port = ports.free_port(taken)
        admin = ports.free_port(taken | {port})
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TAILRACE_", "OTEL_"))}
        pools = _pools(role, number, self.longest, fallback=self.fallback > 0)
        standing_in = {
            "TAILRACE_POOL": FALLBACK_POOL,
            "TAILRACE_MODEL_NAME": FALLBACK_MODEL,
            "TAILRACE_SCRIPT_REVISION": FALLBACK_MODEL,
        }
        environ = {
            **kept,
            "PYTHONPATH": str(ROOT),
            "TAILRACE_KAFKA": self.kafka.address(name),
            "TAILRACE_REDIS": self.redis.url,
            "TAILRACE_NAME": name,
            "TAILRACE_PORT": str(port),
            "TAILRACE_ADMIN_PORT": str(admin),
            "TAILRACE_ISSUERS": str(self.keys.issuers),
            "TAILRACE_POOLS": json.dumps(pools),
            "TAILRACE_POOL": POOL,
            "TAILRACE_ENGINE": "scripted",
            "TAILRACE_MODEL_NAME": MODEL,
            "TAILRACE_SESSION_TIMEOUT_MS": str(self.session_ms),
            "TAILRACE_DRAIN_S": "1",
            "TAILRACE_ENGINE_STALL_S": "3",
            "TAILRACE_ACCEPT_MS": "0",
            "TAILRACE_RECORDS_VERSION": "2",
            "TAILRACE_LIMITS": json.dumps({"requests_rate": 0.0, "tokens_rate": 0.0}),
            "TAILRACE_TEST_TRACE": str(self.transcripts),
            "TAILRACE_TEST_WALL": str(time.time() - time.monotonic()),
            **({"TAILRACE_ARCHIVE": self.archive_url} if self.archive else {}),
            **self.environ,
            **(standing_in if role == "fallback" else {}),
            **(self.worker_environ if role in WORKERS else {}),
            **self.environ_of.get(name, {}),
        }
        self.services[name] = Service(name, role, port, admin, environ, self.folder / f"{name}.log")
        return self.services[name]

    def start(self, name: str, **environ: str) -> None:
        """Start a service, also after its death; from the main thread."""
        service = self.services[name]
        python = self.worker_python if service.role in WORKERS else sys.executable
        module = MODULES.get(service.role, service.role)
        program = ["tests.faults.traced", module] if self.traced else [module]
        command = [python, "-m", *program]
        service.child = child_process.ChildProcess(
            name,
            command,
            environ={**service.environ, **environ},
            log=service.log,
            run=self.run,
            cwd=ROOT,
        )
        service.starts += 1

    def wait_ready(self, *names: str, seconds: float = READY_S) -> None:
        """Until these (all, without names) are ready."""
        missing = [self.services[name] for name in names] or [
            s for s in self.services.values() if s.alive
        ]

        def all_ready() -> bool:
            missing[:] = [s for s in missing if not s.ready()]
            for s in missing:
                assert s.alive, f"{s.name} ended:\n{s.tail()}"
            return not missing

        waiting.eventually_blocking(
            all_ready,
            lambda: f"{[s.name for s in missing]} are ready\n{missing[0].tail()}",
            within_s=seconds,
            every_s=0.1,
        )

    def all_ready(self) -> bool:
        """Whether every service runs and is ready."""
        return all(s.alive and s.ready() for s in self.services.values())

    def of(self, role: str) -> list[Service]:
        return [s for s in self.services.values() if s.role == role]

    def send(self, name: str, signum: signal.Signals) -> None:
        child = self.services[name].child
        assert child is not None
        child.send(signum)

    def kill(self, name: str) -> None:
        """SIGKILL, and wait until it is gone."""
        child = self.services[name].child
        assert child is not None
        child.send(signal.SIGCONT)
        child.kill()

    def mend(self) -> None:
        """Everything as at the beginning: what is dead is started, what is stopped goes on, links
        are whole. Starts nothing when all is well."""
        for one in self.kafka.links.values():
            one.heal()
        for service in self.services.values():
            if service.alive:
                self.send(service.name, signal.SIGCONT)
            else:
                self.start(service.name)
        self.wait_ready()

    @property
    def pools(self) -> list[str]:
        return [POOL, FALLBACK_POOL] if self.fallback else [POOL]

    @property
    def bases(self) -> list[str]:
        """Everything that delivers."""
        return [s.url for s in (*self.of("push"), *self.of("gateway"))]

    @property
    def archive_file(self) -> Path:
        return self.folder / "archive.sqlite3"

    @property
    def archive_url(self) -> str:
        return f"sqlite:///{self.archive_file}"

    def token(self, user: str) -> str:
        return self.keys.token(user, 7200)
