"""Children that cannot outlive their parent, and the search for what is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tailrace.local import child_process, processes
from tests.support import waiting

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]

# A child that starts a grandchild and tells its pid, then waits.
PARENT = [
    sys.executable,
    "-c",
    (
        "import subprocess, sys, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); "
        "time.sleep(60)"
    ),
]


def start(
    command: list[str], tmp_path: Path, name: str = "part", run: str = ""
) -> child_process.ChildProcess:
    return child_process.ChildProcess(
        name,
        command,
        environ=os.environ,
        log=tmp_path / f"{name}.log",
        run=run or f"unit-{os.getpid()}-{tmp_path.name}",
    )


def grandchild(child: child_process.ChildProcess) -> processes.Identity:
    deadline = time.monotonic() + 20
    while not child.output().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found = processes.identity(int(child.output()))
    assert found
    return found


def test_an_identity_stays_the_same_when_the_wall_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Symptom: `down` after a correction of the clock took every process for another one."""
    child = start(SLEEP, tmp_path)
    try:
        boot, created = psutil.boot_time, psutil.Process.create_time
        monkeypatch.setattr(psutil, "boot_time", lambda: boot() + 3600)
        monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 3600)
        assert processes.identity(child.pid) == child.identity
        assert processes.alive(child.identity)
    finally:
        child.stop(0)


def test_a_reused_pid_is_not_the_process_that_was_recorded(tmp_path: Path) -> None:
    child = start(SLEEP, tmp_path)
    try:
        stranger = processes.Identity(child.pid, child.identity.started - 1)
        assert processes.alive(child.identity)
        assert not processes.alive(stranger)
        assert not processes.send(stranger, signal.SIGKILL)
        assert child.returncode is None
    finally:
        child.stop(0)


def test_cpu_is_that_of_exactly_this_process() -> None:
    own = processes.identity(os.getpid())
    assert own is not None
    before = processes.cpu_s(own)
    waiting.eventually_blocking(lambda: processes.cpu_s(own) > before, "it used CPU")
    assert processes.cpu_s(processes.Identity(own.pid, own.started + 1)) == 0


def test_stop_ends_the_child_politely_and_everything_it_started(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    below = grandchild(child)
    assert child.stop(10) == -signal.SIGTERM
    assert not processes.alive(below)


def test_a_child_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(60)"
    )
    child = start([sys.executable, "-c", script], tmp_path)
    while "deaf" not in child.output():
        time.sleep(0.02)
    assert child.stop(0.2) == -signal.SIGKILL


def test_what_a_killed_child_leaves_is_found_by_its_mark_and_ended(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    below = grandchild(child)
    child.kill()
    assert processes.alive(below)
    assert child.sweep() == [below]
    assert not processes.alive(below)


def test_a_sweep_of_one_part_leaves_the_others_alone(tmp_path: Path) -> None:
    run = f"unit-{os.getpid()}-two"
    one, other = start(SLEEP, tmp_path, "one", run), start(SLEEP, tmp_path, "other", run)
    try:
        processes.sweep(run, "one")
        assert one.wait(5) == -signal.SIGKILL
        assert other.returncode is None
    finally:
        processes.sweep(run)
        assert other.wait(5) == -signal.SIGKILL


def test_a_child_is_in_our_session_but_in_a_process_group_of_its_own(tmp_path: Path) -> None:
    """Its own session would be scheduled as a group of its own; our process group would get the
    terminal's Ctrl-C."""
    child = start(SLEEP, tmp_path)
    try:
        assert os.getsid(child.pid) == os.getsid(0)
        assert os.getpgid(child.pid) == child.pid
    finally:
        child.stop(0)


def test_a_child_dies_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, time\n"
        "from tailrace.local import child_process\n"
        f"log = pathlib.Path({str(tmp_path / 'inner.log')!r})\n"
        "child = child_process.ChildProcess('inner', ['sleep', '60'], "
        "environ=os.environ, log=log, run='unit-inner')\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = start([sys.executable, "-c", script], tmp_path)
    inner = grandchild(parent)
    parent.kill()
    assert processes.wait_until_ended([inner], 10)


def test_descendants_are_found_to_any_depth(tmp_path: Path) -> None:
    child = start(PARENT, tmp_path)
    try:
        below = grandchild(child)
        assert [found.pid for found in processes.descendants(child.pid)] == [below.pid]
        assert below.pid in {found.pid for found in processes.descendants(os.getpid())}
    finally:
        child.stop(0)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(processes.StartError, match=r"part: cannot run /no/such/program"):
        start(["/no/such/program"], tmp_path)


def test_output_is_that_of_this_process_not_of_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "part.log").write_text("old\n")
    child = start([sys.executable, "-c", "print('new')"], tmp_path)
    assert child.wait(20) == 0
    assert child.output() == "new\n"
    assert child.last_lines(5) == "new"


def test_an_orphan_that_came_to_the_subreaper_is_killed_and_reaped(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, time\n"
        "from tailrace.local import processes\n"
        "processes.become_subreaper()\n"
        "own = subprocess.Popen(['sleep', '60'])\n"
        "middle = subprocess.Popen(['sh', '-c', 'sleep 60 & echo $!'], stdout=subprocess.PIPE)\n"
        "orphan = processes.identity(int(middle.stdout.readline()))\n"
        "middle.wait()\n"
        "met = processes.reap_orphans({own.pid})\n"
        "print(met == [orphan], own.poll() is None, flush=True)\n"
        "own.kill()\n"
    )
    child = start([sys.executable, "-c", script], tmp_path)
    assert child.wait(30) == 0
    assert child.output() == "True True\n"


def test_a_line_of_output_ends_at_a_line_feed_only(tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write('one\\nt\\u2028w\\u0085o\\n'.encode())"
    child = start([sys.executable, "-c", program], tmp_path)
    assert child.wait(20) == 0
    assert child.last_lines(1) == "t\u2028w\u0085o"
