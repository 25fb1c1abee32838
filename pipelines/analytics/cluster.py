"""Flink on this machine: one JobManager and one TaskManager, which this process starts, kills and
stops. They listen on the loopback only."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from pipelines.analytics import programs
from tailrace.local import ports

START_DEADLINE_S: Final = 120.0
STOP_DEADLINE_S: Final = 15.0
SLOTS: Final = 8
_PACKAGES: Final = (
    *("java.util", "java.lang", "java.net", "java.io", "java.nio", "java.text", "java.time"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "java.lang.reflect", "sun.net.util"),
)
OPENS: Final = tuple(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _PACKAGES)
LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_MIB: Final = 1 << 20
# Values that the scripts of Flink's own distribution compute.
_TASK_MANAGER: Final[Mapping[str, object]] = {
    "taskmanager.cpu.cores": float(SLOTS),
    "taskmanager.memory.framework.heap.size": f"{128 * _MIB}b",
    "taskmanager.memory.task.heap.size": f"{384 * _MIB}b",
    "taskmanager.memory.framework.off-heap.size": f"{64 * _MIB}b",
    "taskmanager.memory.task.off-heap.size": "0b",
    "taskmanager.memory.managed.size": f"{128 * _MIB}b",
    "taskmanager.memory.network.min": f"{64 * _MIB}b",
    "taskmanager.memory.network.max": f"{64 * _MIB}b",
    "taskmanager.memory.jvm-metaspace.size": f"{256 * _MIB}b",
    "taskmanager.memory.jvm-overhead.min": f"{128 * _MIB}b",
    "taskmanager.memory.jvm-overhead.max": f"{128 * _MIB}b",
}


class Cluster:
    """The two processes and their REST address.

    Attributes:
        url: of the JobManager's REST API.
        job_manager, task_manager: None before `start`, and after `stop`.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: for configuration, logs and temporary files."""
        self._folder = folder
        self._jars = programs.ensure_jars()
        self._java = programs.find_java()
        rest = ports.free_port()
        rpc = ports.free_port({rest})
        self.url = f"http://127.0.0.1:{rest}"
        self._rest_port = rest
        self._conf = folder / "conf"
        self.job_manager: subprocess.Popen[bytes] | None = None
        self.task_manager: subprocess.Popen[bytes] | None = None
        self._starts = 0
        temporary = folder / "tmp"
        for each in (self._conf, temporary):
            each.mkdir(parents=True, exist_ok=True)
        settings: dict[str, object] = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": rpc,
            "jobmanager.bind-host": "127.0.0.1",
            "jobmanager.memory.process.size": "700m",
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": rest,
            "taskmanager.host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": SLOTS,
            "io.tmp.dirs": temporary,
            "heartbeat.interval": 2000,
            "heartbeat.timeout": 8000,
            # A TaskManager may be away for longer than a fixed number of attempts lasts.
            "restart-strategy.type": "exponential-delay",
            "restart-strategy.exponential-delay.initial-backoff": "1 s",
            "restart-strategy.exponential-delay.max-backoff": "10 s",
        }
        lines = [f"{name}: {value}" for name, value in settings.items()]
        (self._conf / "config.yaml").write_text("\n".join(lines) + "\n")

    def start_job_manager(self) -> None:
        """Start it and wait until it answers. It knows no job.

        Raises:
            RuntimeError: it ended, or does not answer in time.
        """
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        self.job_manager = self._start("jobmanager", ["-Xmx384m"], main)
        self._until(lambda: self.get("/overview") is not None, self.job_manager)

    def start_task_manager(self) -> None:
        """Start it and wait until its slots are registered. Raises RuntimeError."""
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        name = f"taskmanager-{self._starts + 1}"
        settings = {**_TASK_MANAGER, "taskmanager.resource-id": name}
        options = [part for each in settings.items() for part in ("-D", "{}={}".format(*each))]
        memory = ["-Xmx512m", f"-XX:MaxDirectMemorySize={256 * _MIB}"]
        self.task_manager = self._start("taskmanager", memory, main, options)
        self._until(lambda: name in self._task_managers(), self.task_manager)

    def stop(self) -> None:
        """End both."""
        for process in (self.task_manager, self.job_manager):
            if process is not None:
                process.terminate()
                try:
                    process.wait(STOP_DEADLINE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.task_manager = self.job_manager = None

    def client(self, classes: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Start `Main`, which submits jobs to this cluster."""
        command: list[str | Path] = [self._java, "-Xmx500m", *LOGGING, *OPENS]
        command += ["-cp", f"{classes}:{self._jars}/*", "Main"]
        command += arguments
        command += ["execution.target=remote", "rest.address=127.0.0.1"]
        command += [f"rest.port={self._rest_port}"]
        with (self._folder / "client.log").open("a") as log:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )

    def causes(self, name: str) -> str:
        """The causes of the last failure in a process's log, without stack frames."""
        lines = (self._folder / f"{name}.log").read_text(errors="replace").split("\n")
        starts = ("Exception in thread", "Caused by:")
        return "\n".join([line for line in lines if line.startswith(starts)][-4:])

    def _task_managers(self) -> set[str]:
        overview = self.get("/taskmanagers") or {}
        return {str(each["id"]) for each in overview.get("taskmanagers", [])}

    def _start(
        self, name: str, memory: Sequence[str], main: str, options: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        self._starts += 1
        command: list[str | Path] = [
            self._java,
            *memory,
            *LOGGING,
            *OPENS,
            "-cp",
            f"{self._jars}/*",
            main,
        ]
        command += ["--configDir", self._conf, *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _until(self, ready: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + START_DEADLINE_S
        while time.monotonic() < end:
            if process.poll() is not None:
                break
            if ready():
                return
            time.sleep(0.2)
        raise RuntimeError(f"Flink does not start; its logs are in {self._folder}")

    def get(self, path: str) -> Any:
        """The response of the REST API, or None without one."""
        try:
            answer = httpx.get(self.url + path, timeout=5.0)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None
