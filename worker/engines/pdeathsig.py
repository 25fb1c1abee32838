"""Engine processes die with the process that made them.

`AsyncLLM` runs an EngineCore process, and that one may run Workers with the model in memory; when
the service is killed, all would live for ever. Each registers here for a signal from the kernel at
its parent's death:

- before it does anything else, by the command line it is spawned with (`guard`). Later would be too
  late: an engine whose service died while both were starting waits five minutes for it;
- as a plugin of vLLM (entry-point group `vllm.general_plugins`), for engine processes that were
  forked or that another program spawned.

The signal is sent when the *thread* that started the process ends, so engines are started from a
thread that stays (`worker.engines.vllm`).
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from multiprocessing import spawn
from typing import Any

PARENT = "TAILRACE_ENGINE_PARENT"  # pid of the process whose engine processes inherit this variable
_PR_SET_PDEATHSIG = 1


_PREFIX = "from worker.engines import pdeathsig; pdeathsig.register(); "
_command_line = spawn.get_command_line


def guard() -> None:
    """Called by the service before it starts an engine: processes spawned from here on know their
    parent and register first thing."""
    os.environ[PARENT] = str(os.getpid())
    spawn.get_command_line = _guarded_command_line


def _guarded_command_line(**arguments: Any) -> list[str]:
    """`python … -c PROGRAM …`; multiprocessing offers no hook of its own that runs this early (it
    does not import a package's `__main__` again)."""
    line = _command_line(**arguments)
    at = line.index("-c") + 1
    return [*line[:at], _PREFIX + line[at], *line[at + 1 :]]


def register() -> None:
    """Called in every process that may belong to an engine, possibly more than once. Without effect
    in the service itself, which may well outlive whoever started it."""
    expected = _expected_parent()
    if expected is None or expected == os.getpid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != expected:  # it died before the line above; nobody would tell us any more
        os._exit(1)
    guard()  # our own children


def _expected_parent() -> int | None:
    parent = (
        multiprocessing.parent_process()
    )  # unknown while a spawned process still imports its main module
    if parent is not None and parent.pid is not None:
        return parent.pid
    told = os.environ.get(PARENT, "")
    return int(told) if told.isdigit() else None
