"""Engine processes die with the process that started them.

`AsyncLLM` starts an EngineCore process, which may start further processes with the model in memory.
Without help they would outlive a service that is killed. Each process asks the kernel for SIGKILL
at its parent's death (PR_SET_PDEATHSIG):

- as its first action, in the command line that spawns it (`guard`). Otherwise an engine whose
  service died while both were starting waits five minutes for it;
- as a plugin of vLLM (entry-point group `vllm.general_plugins`), for engine processes that were
  forked or that another program spawned.

The kernel sends the signal when the *thread* that started the process ends. So the thread that
starts an engine must live as long as the engine does (`worker.engines.vllm`).
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
    """Make every process that this one spawns from now on register before anything else. The
    service calls it before it starts an engine."""
    os.environ[PARENT] = str(os.getpid())
    spawn.get_command_line = _guard_command_line


def _guard_command_line(**arguments: Any) -> list[str]:
    """multiprocessing's command line, `python … -c PROGRAM …`, with the registration in front of
    PROGRAM. multiprocessing has no hook that runs this early."""
    line = _command_line(**arguments)
    at = line.index("-c") + 1
    return [*line[:at], _PREFIX + line[at], *line[at + 1 :]]


def register() -> None:
    """Ask for SIGKILL at the parent's death. Called in every process that may belong to an engine,
    possibly more than once. Has no effect in the service itself, which may outlive its parent.

    Raises:
        OSError: the kernel refused.
    """
    parent = _parent_pid()
    if parent is None or parent == os.getpid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the call above, so no signal will come
        os._exit(1)
    guard()  # for the processes that this one starts


def _parent_pid() -> int | None:
    # Unknown while a spawned process still imports its main module.
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        return parent.pid
    pid = os.environ.get(PARENT, "")
    return int(pid) if pid.isdigit() else None
