"""`ps`, `down` and `doctor` over real processes that carry a deployment's mark."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.cli import control, deployment_commands, doctor
from tailrace.local import java, kafka_broker, paths, processes, redis_server, state

Sleep = Callable[[str], subprocess.Popen[bytes]]


@pytest.fixture
def data(tmp_path: Path) -> paths.Data:
    made = paths.Data(tmp_path / "data")
    made.make()
    return made


@pytest.fixture
def sleep(data: paths.Data) -> Iterator[Sleep]:
    """Starts a process with the mark of this data folder, as a part of that name."""
    started: list[subprocess.Popen[bytes]] = []

    def start(part: str) -> subprocess.Popen[bytes]:
        marks = {processes.RUN_MARK: processes.new_mark(data.root), processes.PART_MARK: part}
        started.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def saved(data: paths.Data, *parts: state.Part) -> None:
    """A state file whose supervisor is gone."""
    supervisor = state.Part(name="supervisor", role="supervisor", pid=2**22, started=1)
    running = state.State(run="r", supervisor=supervisor, phase="ready", parts=list(parts))
    state.save(data.state, running)


def test_what_carries_the_mark_is_ended_without_a_state_file(
    data: paths.Data, sleep: Sleep
) -> None:
    """Symptom: `down` said "everything is stopped" and left it."""
    other = sleep("worker-1")
    assert [row.state for row in control.rows(data)] == ["orphan"]
    said: list[str] = []
    assert control.down(data, said.append)
    assert said == ["stopped 1 process: sleep 60", "everything is stopped"]
    assert other.wait(5) == -signal.SIGTERM


def test_down_says_what_it_could_not_end_and_how_to(
    data: paths.Data, sleep: Sleep, monkeypatch: pytest.MonkeyPatch
) -> None:
    stubborn, meek = sleep("worker-1"), sleep("worker-2")
    send = processes.send
    monkeypatch.setattr(
        processes, "send", lambda who, number: who.pid != stubborn.pid and send(who, number)
    )
    monkeypatch.setattr(kafka_broker, "STOP_S", 0.2)
    said: list[str] = []
    assert not control.down(data, said.append)
    assert said[0] == "stopped 1 process: sleep 60"
    assert f"(pid {stubborn.pid}, sleep 60)" in said[1]
    assert f"kill -9 {stubborn.pid}" in said[1]
    assert len(said) == 2, "it does not say that everything is stopped"
    assert meek.wait(5) == -signal.SIGTERM


def test_down_leaves_other_folders_alone(data: paths.Data, sleep: Sleep, tmp_path: Path) -> None:
    mine = sleep("worker-1")
    said: list[str] = []
    assert control.down(paths.Data(tmp_path / "dat"), said.append)
    assert "nothing runs here" in said[0]
    assert mine.poll() is None


def test_after_a_killed_supervisor_nobody_says_that_it_stopped(data: paths.Data) -> None:
    saved(data)
    assert control.rows(data) == []
    assert "was killed before it could stop" in control.last_words(data)
    found = next(one for one in doctor.examine(data) if one.subject == "deployment")
    assert found.level == "problem"
    assert f"--data {data.root}" in found.cure


def test_what_a_killed_supervisor_left_is_shown_with_the_supervisor_gone(
    data: paths.Data, sleep: Sleep
) -> None:
    left = sleep("gateway-1")
    who = processes.identity(left.pid)
    assert who
    part = state.Part(name="gateway-1", role="gateway", pid=who.pid, started=who.started)
    saved(data, part)
    rows = control.rows(data)
    assert [(row.name, row.state) for row in rows] == [
        ("supervisor", "gone"),
        ("gateway-1", "running"),
    ]
    found = doctor.deployment(data, rows)
    assert "no supervisor watches" in found[0].text
    assert f"tailrace down --data {data.root}`" in found[0].cure


def row(
    role: state.Role,
    now: str,
    detail: str,
    *,
    ready: bool = False,
    features: tuple[str, ...] | None = None,
) -> control.Row:
    log = "/logs/x.log"
    return control.Row(f"{role}-1", role, 1, "", ready, now, detail, log=log, features=features)


@pytest.mark.parametrize(
    ("shown", "level", "text", "cure"),
    [
        (row("worker", "running", "", ready=True), "ok", "ready", ""),
        (row("worker", "running", "loading the engine"), "note", "loading", "Wait; its log"),
        (
            row("worker", "running", "the server refuses the credential (401)", ready=True),
            "problem",
            "ready, but the server refuses the credential (401)",
            "TAILRACE_ENGINE",
        ),
        (row("gateway", "running", "starting"), "note", "loading", "Wait; its log"),
        (row("worker", "running", "it does not answer"), "problem", "not ready", "See its log"),
        (
            row("redis", "ended (SIGKILL)", "starts again in 4 s"),
            "problem",
            "starts again in 4 s",
            "supervisor starts it again",
        ),
        (
            row("push", "ended (code 2)", "keeps dying, 3 times in a row; starts again in 2 s"),
            "problem",
            "keeps dying",
            "/logs/x.log",
        ),
        (row("kafka", "ended (SIGKILL)", ""), "problem", "SIGKILL", "tailrace up"),
        (row("engine", "orphan", ""), "problem", "left behind", "tailrace down"),
    ],
)
def test_a_line_that_is_not_ok_names_a_cure(
    data: paths.Data, shown: control.Row, level: str, text: str, cure: str
) -> None:
    """Symptom: a worker that loaded its engine was a PROBLEM, and most lines named no cure."""
    (found,) = doctor.deployment(data, [shown])
    assert found.level == level
    assert text in found.text
    assert cure in found.cure


@pytest.mark.parametrize(
    ("features", "parsers", "told"),
    [
        (None, (), ""),
        ((), (), "plain text only"),
        (("custom_tools", "tools"), (), "custom tools, tools"),
        (("tools",), ("hermes", "qwen3"), "tools; parsers hermes, qwen3"),
    ],
)
def test_what_a_workers_engine_can_do_is_told(
    data: paths.Data,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    features: tuple[str, ...] | None,
    parsers: tuple[str, ...],
    told: str,
) -> None:
    one = row("worker", "running", "", ready=True, features=features)
    one = dataclasses.replace(one, parsers=parsers)
    (found,) = doctor.deployment(data, [one])
    assert found.text == (f"ready ({told})" if told else "ready")
    monkeypatch.setattr(control, "rows", lambda _: [one])
    deployment_commands.ps(data=data.root)
    head, line = capsys.readouterr().out.splitlines()
    columns = len(re.split(r"\s{2,}", head))
    assert re.split(r"\s{2,}", line)[columns - 1 :] == ([told] if told else [])


def test_a_finding_without_a_cure_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="needs a cure"):
        doctor.Finding("memory", "note", "none left")


def test_every_check_of_an_empty_machine_has_a_cure(
    data: paths.Data, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The dataclass refuses a finding without one: the checks only have to run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "ENGINE_ENVIRONMENT", tmp_path / "none")
    monkeypatch.setattr(paths, "PAGE", tmp_path / "none")

    def no(*_: object) -> Path:
        raise processes.StartError("install it")

    monkeypatch.setattr(java, "find", no)
    monkeypatch.setattr(redis_server, "find", no)
    levels = {found.subject: found.level for found in doctor.examine(data)}
    assert levels["Java"] == levels["Redis"] == "problem"
    assert levels["model engine"] == levels["model"] == levels["page"] == "note"
