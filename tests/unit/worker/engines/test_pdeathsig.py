"""A process dies with its parent, however early that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from worker.engines import pdeathsig

ROOT = Path(__file__).parents[4]


def start(program: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        stdout=subprocess.PIPE,
        text=True,
    )


def gone(pid: int, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    "registered", [True, False], ids=["registered", "not registered: it outlives its parent"]
)
def test_a_killed_parent_takes_its_registered_child_along(registered: bool) -> None:
    register = "from worker.engines import pdeathsig; pdeathsig.register(); " * registered
    child = f"{register}print('up', flush=True); import time; time.sleep(30)"
    parent = start(
        f"""
        import subprocess, sys, time
        from worker.engines import pdeathsig
        pdeathsig.guard()
        line = [sys.executable, "-c", {child!r}]
        made = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        made.stdout.readline()
        print(made.pid, flush=True)
        time.sleep(30)
        """
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        assert gone(pid, 5.0 if registered else 0.5) is registered
    finally:
        if not registered:
            os.kill(pid, signal.SIGKILL)
        parent.stdout.close()


def test_spawned_processes_and_their_own_children_register_before_anything_else(
    tmp_path: Path,
) -> None:
    """The child below does nothing about it, and its parent dies while it still imports: what an
    engine killed during its start looks like."""
    (tmp_path / "engine_like.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, time

            def inner(): print("inner", os.getpid(), flush=True); time.sleep(30)

            def outer():
                print("outer", os.getpid(), flush=True)
                multiprocessing.get_context("spawn").Process(target=inner).start()
                time.sleep(30)
            """
        )
    )
    parent = start(
        """
        import multiprocessing, time, engine_like
        from worker.engines import pdeathsig
        pdeathsig.guard()
        multiprocessing.get_context("spawn").Process(target=engine_like.outer).start()
        time.sleep(30)
        """,
        PYTHONPATH=f"{ROOT}:{tmp_path}",
    )
    assert parent.stdout is not None
    pids = [int(parent.stdout.readline().split()[1]) for _ in range(2)]
    parent.kill()
    parent.wait()
    assert all(gone(pid, 5.0) for pid in pids)
    parent.stdout.close()


def test_a_child_whose_parent_is_dead_already_does_not_start() -> None:
    orphan = start(
        "from worker.engines import pdeathsig; pdeathsig.register(); print('lives')",
        **{pdeathsig.PARENT: "999999999"},
    )
    out, _ = orphan.communicate(timeout=20)
    assert (orphan.returncode, out) == (1, "")


def test_the_service_itself_and_strangers_are_left_alone() -> None:
    service = start(
        "from worker.engines import pdeathsig; pdeathsig.register(); pdeathsig.guard(); "
        "pdeathsig.register(); print('lives')"
    )
    out, _ = service.communicate(timeout=20)
    assert (service.returncode, out) == (0, "lives\n")
