"""Sides that are started at once, and one that stands still while the other is asked."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from bench import stacks


def side(name: str, roles: dict[str, list[int]] | None = None) -> stacks.Side:
    return stacks.Side(name, "", "", {}, roles or {})


@contextlib.contextmanager
def started(
    name: str, ends: list[str], met: threading.Barrier, fails: bool = False
) -> Iterator[stacks.Side]:
    met.wait(10)  # breaks unless both start at the same time
    if fails:
        raise RuntimeError(name)
    try:
        yield side(name)
    finally:
        ends.append(name)


def test_both_start_at_once_and_end_afterwards() -> None:
    ends: list[str] = []
    met = threading.Barrier(2)
    with stacks.together(started("a", ends, met), started("b", ends, met)) as (a, b):
        assert (a.name, b.name) == ("a", "b")
        assert ends == []
    assert sorted(ends) == ["a", "b"]


@pytest.mark.parametrize("failing", ["a", "b"])
def test_when_one_does_not_start_the_other_is_ended(failing: str) -> None:
    ends: list[str] = []
    met = threading.Barrier(2)
    made = [started(name, ends, met, fails=name == failing) for name in ("a", "b")]
    with pytest.raises(RuntimeError, match=failing), stacks.together(*made):
        pytest.fail("it began")
    assert ends == [{"a": "b", "b": "a"}[failing]]


def stands_still(pid: int, still: bool) -> bool:
    """Whether it comes to that; a signal takes effect a moment after it was sent."""
    end = time.monotonic() + 5
    while (psutil.Process(pid).status() == psutil.STATUS_STOPPED) is not still:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_a_frozen_side_stands_still_but_for_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "THAW_S", 0.0)
    with contextlib.ExitStack() as ending:
        pids = {}
        for role in ("worker", "kafka"):
            process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            ending.callback(process.wait)
            ending.callback(process.kill)
            pids[role] = process.pid
        with stacks.frozen(side("ours", {role: [pid] for role, pid in pids.items()})):
            assert stands_still(pids["worker"], True)
            assert psutil.Process(pids["kafka"]).status() != psutil.STATUS_STOPPED
        assert stands_still(pids["worker"], False)


def test_vllms_server_is_compiled_on_a_gpu_and_takes_the_pools_engine_arguments() -> None:
    given = {"load_format": "dummy", "kv_cache_memory_bytes": 5}
    options = stacks.server_options("", given, gpu=True)
    assert "--enforce-eager" not in options
    assert options[options.index("--load-format") + 1] == "dummy"
    assert options[options.index("--kv-cache-memory-bytes") + 1] == "5"
    assert "--enforce-eager" in stacks.server_options("", {}, gpu=False)
