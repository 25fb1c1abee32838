"""Keeps a cluster and its jobs running, whichever of its processes dies.

A JobManager without high availability loses its jobs when it dies; their checkpoints stay. So this
stores the ids of each job's runs, and submits a lost job again, from the newest complete checkpoint
of its latest run that has one. The restored sink commits the transactions of that checkpoint. Later
ones are aborted and their input is read again: results are neither lost nor doubled.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pipelines.analytics import jobs, programs
from pipelines.analytics.cluster import Cluster

SUBMIT_DEADLINE_S: Final = 240.0
# A job in one of these states will never run again.
_OVER: Final = frozenset({"FAILED", "CANCELED", "FINISHED"})
SQL: Final = programs.HERE / "sql"


class Supervisor:
    """Call `step` several times a second.

    Attributes:
        restarts: names of restarted parts: `taskmanager`, `jobmanager`, jobs.
        _runs: the ids of each job, oldest first; also in a file, for the next supervisor.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        classes: Path,
        *,
        names: Sequence[str],
        variables: Mapping[str, str],
        settings: Mapping[str, str],
        report: Callable[[str], None],
    ) -> None:
        """`folder`: for checkpoints and memory. `names`: of `jobs.JOBS`. `variables`: of the SQL
        files. `settings`: of Flink."""
        self.restarts: list[str] = []
        self._cluster = cluster
        self._checkpoints = folder / "checkpoints"
        self._memory = folder / "runs.json"
        self._classes = classes
        self._names = tuple(names)
        self._variables = dict(variables)
        self._settings = {
            "execution.checkpointing.dir": self._checkpoints.as_uri(),
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            **settings,
        }
        self._report = report
        self._runs: dict[str, list[str]] = {name: [] for name in self._names}
        if self._memory.exists():
            self._runs |= json.loads(self._memory.read_text())

    def start(self) -> None:
        """Start the processes and all jobs. Raises RuntimeError."""
        self._cluster.start_job_manager()
        self._cluster.start_task_manager()
        self._submit(self._names)

    def step(self) -> None:
        """Restart dead processes and lost jobs; blocks until they run. Raises RuntimeError."""
        manager, tasks = self._cluster.job_manager, self._cluster.task_manager
        if manager is None or manager.poll() is not None:
            self._restart("jobmanager", self._cluster.start_job_manager)
        if tasks is None or tasks.poll() is not None:
            self._restart("taskmanager", self._cluster.start_task_manager)
        states = self.states()
        if states is None:
            return
        stopped_jobs = [
            name
            for name in self._names
            if states.get(self._runs[name][-1] if self._runs[name] else "", "FAILED") in _OVER
        ]
        if stopped_jobs:
            self.restarts += stopped_jobs
            self._submit(stopped_jobs)

    def states(self) -> dict[str, str] | None:
        """State of each job by id, from the JobManager; None if it does not answer."""
        answer = self._cluster.get("/jobs")
        return answer and {str(each["id"]): str(each["status"]) for each in answer["jobs"]}

    def running(self) -> bool:
        """Whether all tasks of all jobs run."""
        for name in self._names:
            job = self._cluster.get(f"/jobs/{self._runs[name][-1]}")
            if job is None or job["state"] != "RUNNING":
                return False
            if any(vertex["status"] != "RUNNING" for vertex in job["vertices"]):
                return False
        return True

    def checkpoint(self, name: str) -> Path | None:
        """The newest complete checkpoint of a job, of its latest run that has one."""
        for run in reversed(self._runs[name]):
            folder = self._checkpoints / run
            # Metadata is written last, and under this name only when it is whole.
            newest = jobs.newest_checkpoint(p.parent.name for p in folder.glob("chk-*/_metadata"))
            if newest is not None:
                return folder / newest
        return None

    def _restart(self, name: str, start: Callable[[], None]) -> None:
        self.restarts.append(name)
        began = time.monotonic()
        start()
        self._report(f"{name} again after {time.monotonic() - began:.1f} s")

    def _submit(self, names: Sequence[str]) -> None:
        arguments = [str(SQL / f"{jobs.TABLES}.sql")]
        for name in names:
            place = self.checkpoint(name)
            at = f"@{place.as_uri()}" if place is not None else ""
            arguments.append(f"{SQL / name}.sql{at}")
        arguments += [f"{name}={value}" for name, value in self._settings.items()]
        arguments += [f":{name}={value}" for name, value in self._variables.items()]
        began = time.monotonic()
        client = self._cluster.client(self._classes, arguments)
        try:
            output, _ = client.communicate(timeout=SUBMIT_DEADLINE_S)
        except subprocess.TimeoutExpired:
            client.kill()
            client.communicate()
            raise RuntimeError("Flink takes no job") from None
        for line in output.splitlines():
            if line.startswith("submitted "):
                _, name, run = line.split()
                self._runs[name].append(run)
                self._remember()
        if client.returncode:
            raise RuntimeError(f"jobs were not submitted: {self._cluster.causes('client')}")
        self._report(f"submitted {', '.join(names)} after {time.monotonic() - began:.1f} s")

    def _remember(self) -> None:
        fresh = self._memory.with_suffix(".new")
        fresh.write_text(json.dumps(self._runs))
        fresh.replace(self._memory)
