"""What is gone is started again, and jobs go on from their newest checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.analytics import supervisor


class Process:
    """A process that runs until `code` is set."""

    def __init__(self) -> None:
        self.code: int | None = None

    def poll(self) -> int | None:
        return self.code


class Client:
    """Main: it submits what its arguments name."""

    def __init__(self, told: str, returncode: int) -> None:
        self.told, self.returncode = told, returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        return self.told, None


class Flink:
    """A cluster in memory. A new JobManager knows no jobs."""

    def __init__(self) -> None:
        self.job_manager, self.task_manager = Process(), Process()
        self.jobs: dict[str, str] = {}
        self.submitted: list[list[str]] = []
        self.refuses = self.silent = False
        self._runs = 0

    def start_job_manager(self) -> None:
        self.job_manager, self.jobs = Process(), {}

    def start_task_manager(self) -> None:
        self.task_manager = Process()

    def get(self, path: str) -> Any:
        if self.silent:
            return None
        return {"jobs": [{"id": run, "status": state} for run, state in self.jobs.items()]}

    def client(self, classes: Path, arguments: Sequence[str]) -> Client:
        files = [each for each in arguments if ".sql" in each and not each.endswith("tables.sql")]
        self.submitted.append([each.rsplit("/sql/")[-1] for each in files])
        if self.refuses:
            return Client("", 1)
        lines = []
        for each in files:
            self._runs += 1
            self.jobs[f"run{self._runs}"] = "RUNNING"
            name = each.split("/sql/")[-1].split(".sql")[0]
            lines.append(f"submitted {name} run{self._runs}\n")
        return Client("".join(lines), 0)

    def causes(self, name: str) -> str:
        return "no such table"


def keeper(flink: Flink, folder: Path) -> supervisor.Supervisor:
    fake: Any = flink
    return supervisor.Supervisor(
        *(fake, folder, folder),
        names=["usage", "sessions"],
        variables={},
        settings={},
        report=lambda _: None,
    )


def complete(folder: Path, run: str, *numbers: int, whole: bool = True) -> None:
    for number in numbers:
        place = folder / "checkpoints" / run / f"chk-{number}"
        place.mkdir(parents=True)
        if whole:
            (place / "_metadata").touch()


@pytest.fixture
def flink() -> Flink:
    return Flink()


@pytest.fixture
def kept(flink: Flink, tmp_path: Path) -> supervisor.Supervisor:
    made = keeper(flink, tmp_path)
    made.start()
    assert flink.submitted == [["usage.sql", "sessions.sql"]]
    return made


def test_nothing_is_done_while_everything_runs(flink: Flink, kept: supervisor.Supervisor) -> None:
    kept.step()
    assert (len(flink.submitted), kept.restarts) == (1, [])


def test_a_task_manager_comes_back_and_its_jobs_go_on_by_themselves(
    flink: Flink, kept: supervisor.Supervisor
) -> None:
    flink.task_manager.code = -9
    kept.step()
    assert flink.task_manager.poll() is None
    assert (len(flink.submitted), kept.restarts) == (1, ["taskmanager"])


def test_jobs_that_a_job_manager_forgot_go_on_from_their_newest_checkpoint(
    flink: Flink, kept: supervisor.Supervisor, tmp_path: Path
) -> None:
    complete(tmp_path, "run1", 9, 10)
    complete(tmp_path, "run1", 11, whole=False)
    flink.job_manager.code = -9
    kept.step()
    place = (tmp_path / "checkpoints" / "run1" / "chk-10").as_uri()
    assert flink.submitted[1:] == [[f"usage.sql@{place}", "sessions.sql"]]
    assert kept.restarts == ["jobmanager", "usage", "sessions"]


def test_a_run_without_a_checkpoint_leaves_that_of_the_one_before(
    flink: Flink, kept: supervisor.Supervisor, tmp_path: Path
) -> None:
    complete(tmp_path, "run1", 4)
    for _ in range(2):
        flink.job_manager.code = -9
        kept.step()
    place = (tmp_path / "checkpoints" / "run1" / "chk-4").as_uri()
    assert flink.submitted[2] == [f"usage.sql@{place}", "sessions.sql"]
    complete(tmp_path, "run5", 1)  # the newest run of usage
    assert kept.checkpoint("usage") == tmp_path / "checkpoints" / "run5" / "chk-1"


def test_only_a_job_that_failed_for_good_is_submitted_again(
    flink: Flink, kept: supervisor.Supervisor
) -> None:
    flink.jobs["run2"] = "FAILED"
    flink.jobs["run1"] = "RESTARTING"
    kept.step()
    assert flink.submitted[1:] == [["sessions.sql"]]


def test_a_job_manager_that_does_not_answer_loses_no_job(
    flink: Flink, kept: supervisor.Supervisor
) -> None:
    flink.silent = True
    kept.step()
    assert len(flink.submitted) == 1


def test_the_next_supervisor_knows_the_checkpoints_of_the_last(
    flink: Flink, kept: supervisor.Supervisor, tmp_path: Path
) -> None:
    complete(tmp_path, "run2", 3)
    keeper(flink, tmp_path).start()
    place = (tmp_path / "checkpoints" / "run2" / "chk-3").as_uri()
    assert flink.submitted[1] == ["usage.sql", f"sessions.sql@{place}"]


def test_a_job_that_flink_refuses_is_an_error_with_its_cause(flink: Flink, tmp_path: Path) -> None:
    flink.refuses = True
    with pytest.raises(RuntimeError, match="no such table"):
        keeper(flink, tmp_path).start()
