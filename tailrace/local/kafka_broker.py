"""Apache Kafka on this machine: one combined KRaft node with a small heap."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tailrace.local import child_process, java, paths, ports, processes, server_process

HOST = "127.0.0.1"
START_S = 60.0
STOP_S = 10.0
READY_LINE = "Kafka Server started"

# The broker gets SIGTERM when its supervisor dies. It always ends on this signal, and after a clean
# stop the next start needs no recovery.
DEATH_SIGNAL = signal.SIGTERM

_LOG4J = Path(__file__).parent / "resources" / "log4j2.yaml"


def properties(
    port: int, controller_port: int, log_dir: Path, extra: Mapping[str, str] | None = None
) -> str:
    """The server.properties of a development node.

    Ports may change from one start to the next, because no file in the log folder contains them.
    """
    listeners = f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}"
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "controller.quorum.bootstrap.servers": f"{HOST}:{controller_port}",
        "log.dirs": str(log_dir),
        # all topics are in tailrace/protocol/topics.py
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        # Internal topics: one node cannot hold the default three replicas, and their default of 50
        # partitions takes seconds to open.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",  # fault tests use short sessions
        "log.cleaner.dedupe.buffer.size": "4194304",  # 128 MiB by default, half of this heap
        "log.cleaner.threads": "1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "group.coordinator.threads": "1",
        "log.retention.hours": "24",
        "log.retention.check.interval.ms": "30000",
        "log.index.size.max.bytes": "1048576",
        **(extra or {}),
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def cluster_id() -> str:
    """A random cluster id: URL-safe base64 of 16 bytes.

    It never begins with a dash, which StorageTool would read as an option.
    """
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


def classpath(folder: Path) -> str:
    """Every jar of the folder, sorted. A wildcard has no defined order.

    Raises:
        StartError: the folder has no jars.
    """
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise processes.StartError(
            f"Kafka's jars are not in {folder}: run `make install`, or give a broker by "
            f"TAILRACE_KAFKA"
        )
    return ":".join(str(jar) for jar in jars)


class Broker(server_process.ServerProcess):
    """A broker whose log is in one folder. The log stays when the broker ends."""

    title = "Kafka"
    start_s = START_S
    stop_s = STOP_S

    def __init__(
        self,
        folder: Path,
        port: int,
        controller_port: int,
        *,
        run: str,
        log: Path,
        heap_mb: int = 256,
        extra: Mapping[str, str] | None = None,
        jars: Path | None = None,
    ) -> None:
        super().__init__(folder, port, run=run, log=log)
        self.controller_port = controller_port
        self.heap_mb = heap_mb
        self.extra = extra
        self._jars = jars or paths.jars()
        self._java = java.find()
        self._java_options = _shared_classes(self._java, self._jars)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _log_dir(self) -> Path:
        return self.folder / "log"

    def command(self, *main: str) -> list[str]:
        """Java with this class of Kafka and its arguments."""
        return [
            str(self._java),
            "-Xms128m" if self.heap_mb >= 128 else f"-Xms{self.heap_mb}m",
            f"-Xmx{self.heap_mb}m",
            "-XX:+UseSerialGC",
            # a large young generation: fewer collections, each costs only the survivors
            f"-Xmn{self.heap_mb * 3 // 8}m",
            "-XX:TieredStopAtLevel=1",
            "-XX:MaxMetaspaceSize=128m",
            "-XX:ReservedCodeCacheSize=64m",
            "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true",
            *self._java_options,
            f"-Dkafka.logs.dir={self.folder}",
            f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
            "-cp",
            classpath(self._jars),
            *main,
        ]

    def prepare(self) -> None:
        """Write the settings. Format the log folder if it is new.

        Raises:
            StartError: Kafka cannot format the folder.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(
            properties(self.port, self.controller_port, self._log_dir, self.extra)
        )
        if (self._log_dir / "meta.properties").exists():
            return
        # An interrupted format leaves files but no meta.properties. StorageTool refuses such a
        # folder.
        shutil.rmtree(self._log_dir, ignore_errors=True)
        process = subprocess.run(
            self.command(
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster_id(),
                "-c",
                str(self._settings),
                "--standalone",
            ),
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            env=_environ(),
        )
        if process.returncode != 0:
            raise processes.StartError(
                f"Kafka could not format {self._log_dir}:\n{process.stdout}{process.stderr}"
            )

    def start(self) -> None:
        self.prepare()
        self.child = child_process.ChildProcess(
            "kafka",
            self.command("kafka.Kafka", str(self._settings)),
            environ=_environ(),
            log=self.log,
            run=self.run,
            death_signal=DEATH_SIGNAL,
        )

    def serves(self, child: child_process.ChildProcess) -> bool:
        return READY_LINE in child.output() and self.answers()

    def answers(self) -> bool:
        return ports.accepts(self.port)


# Loading and verifying classes takes two fifths of a broker's start. Java's class data sharing
# keeps the verified classes in an archive for the next start. An archive is for one Java and one
# set of jars; Java refuses it for any other.
ARCHIVE_S = 120.0


def class_archive(java: Path, jars: Path) -> Path:
    """The archive of these jars' classes for this Java. An empty file: this Java can make none."""
    binary = java.resolve()
    key = f"{binary} {binary.stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}"
    return paths.cache() / "kafka" / f"classes-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def _shared_classes(java: Path, jars: Path) -> list[str]:
    if not jars.is_dir():
        return []
    archive = class_archive(java, jars)
    return (
        [f"-XX:SharedArchiveFile={archive}"] if archive.is_file() and archive.stat().st_size else []
    )


def make_class_archive() -> None:
    """Start a broker once, stop it, and archive the classes that it loaded.

    Raises:
        processes.StartError: the broker does not start, or does not end in time.
    """
    target = class_archive(java.find(), paths.jars())
    with tempfile.TemporaryDirectory(prefix="tailrace-classes-") as name:
        folder = Path(name)
        archive = folder / "classes.jsa"
        port = ports.free_port()
        run = f"classes-{secrets.token_hex(6)}"
        broker = Broker(
            folder / "kafka", port, ports.free_port({port}), run=run, log=folder / "kafka.log"
        )
        broker.prepare()
        broker._java_options = [f"-XX:ArchiveClassesAtExit={archive}"]
        try:
            broker.start()
            broker.wait_ready(ARCHIVE_S)
        finally:
            code = broker.child.stop(ARCHIVE_S) if broker.child else 0
        if code == -signal.SIGKILL:
            raise processes.StartError(
                f"Kafka had not written its classes {ARCHIVE_S:.0f} s after its end"
            )
        archive.touch()
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(archive, fresh)
        fresh.replace(target)


def _environ() -> dict[str, str]:
    """The environment without the Java options and class path of the user's other programs."""
    excluded = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH")
    return {key: value for key, value in os.environ.items() if key not in excluded}
