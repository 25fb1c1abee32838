"""Finds processes and ends them, without ever hitting the wrong one.

Three nets hold the children of a supervisor, because each net has a hole:

1. The kernel's parent-death signal. Every child sets it again; grandchildren do not inherit it.
2. The subreaper. Orphaned grandchildren become children of the supervisor while it lives.
3. A mark in the environment, which every descendant inherits. It names the run and the data
   folder. `tailrace down` finds it when the supervisor itself was killed, and finds services that
   were started by hand to join the deployment.

A pid alone does not identify a process, because pids are reused: it is stored with its start time.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

RUN_MARK = "TAILRACE_RUN"
PART_MARK = "TAILRACE_PART"
ADMIN_PORT = "TAILRACE_ADMIN_PORT"
PORT = "TAILRACE_PORT"

_libc = ctypes.CDLL(None, use_errno=True)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class StartError(Exception):
    """A part could not be started. The text says which one and what to do."""


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of init's (Linux 3.4)."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with(parent: int, signum: int) -> Callable[[], None]:
    """A function for a new child to run before exec: `signum` reaches it when `parent` ends.

    Everything that it needs is made before the fork. After the fork it must take no lock, because
    another thread may have held any lock at that moment.
    """
    prctl, getppid, leave = _libc.prctl, os.getppid, os._exit

    def step() -> None:
        prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
        if getppid() != parent:  # the parent died before prctl took effect
            leave(1)

    return step


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for certain.

    Attributes:
        pid: its process id.
        started: its start in clock ticks since boot. A reused pid has another value.
    """

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process below another one, with the name of its program."""

    pid: int
    name: str


def _start_time(process: psutil.Process) -> int:
    """Ticks since boot. psutil gives the start by the wall clock, which may be set at any time:
    the boot time, which psutil added, is taken off again. It is read twice, in case the clock is
    set in between."""
    while True:
        boot = psutil.boot_time()
        create_time = psutil.Process(process.pid).create_time()
        if psutil.boot_time() == boot:
            ticks: int = round((create_time - boot) * _TICKS_PER_S)
            return ticks


def identity(pid: int) -> Identity | None:
    """The identity of a process; None if it does not exist."""
    try:
        return Identity(pid, _start_time(psutil.Process(pid)))
    except psutil.Error:
        return None


def alive(identity_: Identity) -> bool:
    """Whether exactly this process runs. A zombie is dead."""
    try:
        process = psutil.Process(identity_.pid)
        return process.status() not in _DEAD and _start_time(process) == identity_.started
    except psutil.Error:
        return False


def cpu_s(identity_: Identity) -> float:
    """Seconds of CPU that exactly this process has used; 0 if it is gone."""
    if not alive(identity_):
        return 0.0
    try:
        times = psutil.Process(identity_.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)


def send(identity_: Identity, signum: int) -> bool:
    """Signal exactly this process. The pidfd pins it, so a pid that is reused between the look and
    the signal is not hit. Returns False if the process is gone."""
    try:
        fd = os.pidfd_open(identity_.pid)
    except OSError:
        return False
    try:
        if not alive(identity_):
            return False
        signal.pidfd_send_signal(fd, signum)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


@dataclass(frozen=True, slots=True)
class MarkedProcess:
    """A process that carries the mark of a deployment.

    Attributes:
        part: the name of the part that it belongs to.
        port, admin_port: the settings of that service in its environment; empty without.
    """

    identity: Identity
    run: str
    part: str
    port: str
    admin_port: str


def new_mark(folder: Path) -> str:
    """The mark of a new run of the deployment in this data folder."""
    return f"{secrets.token_hex(8)}@{folder}"


def find_marked(run: str, part: str | None = None) -> list[Identity]:
    """Every process with the mark of this run (and of this part), orphans included."""
    return [
        process.identity
        for process in _all_marked()
        if process.run == run and part in (None, process.part)
    ]


def marked_in(folder: Path, run: str = "") -> list[MarkedProcess]:
    """Every process with the mark of any run in this data folder, or with the mark `run`."""
    return [
        process
        for process in _all_marked()
        if process.run == run or process.run.partition("@")[2] == str(folder)
    ]


def data_folder(pid: int) -> str:
    """The data folder of the deployment that this process belongs to; empty if it has no mark."""
    try:
        mark: str = psutil.Process(pid).environ().get(RUN_MARK, "")
    except (psutil.Error, OSError):
        return ""
    return mark.partition("@")[2]


def _all_marked() -> Iterator[MarkedProcess]:
    """All living processes with a mark but this one."""
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue
        run = environ.get(RUN_MARK)
        if not run or process.pid == os.getpid():
            continue
        identity_ = identity(process.pid)
        if identity_:
            yield MarkedProcess(
                identity_,
                run,
                environ.get(PART_MARK, ""),
                environ.get(PORT, ""),
                environ.get(ADMIN_PORT, ""),
            )


def descendants(root: int) -> list[Descendant]:
    """All living processes below `root`."""
    identities = []
    try:
        below = psutil.Process(root).children(recursive=True)
    except psutil.Error:
        return []
    for process in below:
        try:
            if process.status() not in _DEAD:
                identities.append(Descendant(process.pid, process.name()))
        except psutil.Error:
            continue
    return identities


def count_text(items: Sequence[object]) -> str:
    """ "1 process", "2 processes"."""
    return f"{len(items)} process{'' if len(items) == 1 else 'es'}"


def command(pid: int) -> str:
    """The command line as `ps` shows it; empty if the process is gone."""
    try:
        return " ".join(psutil.Process(pid).cmdline()).strip()
    except psutil.Error:
        return ""


def sweep(run: str, part: str | None = None) -> list[Identity]:
    """Kill every process that carries the mark.

    Returns the processes that were found. One that could not be ended is still `alive`.
    """
    return end(lambda: find_marked(run, part))


def end(find: Callable[[], list[Identity]], *, grace_s: float = 0.0) -> list[Identity]:
    """End what `find` returns: with a grace, SIGTERM first; then SIGKILL until it finds nothing.

    Returns the processes that were found. One that could not be ended is still `alive`.
    """
    identities = find()
    if grace_s and identities:
        for one in identities:
            send(one, signal.SIGTERM)
        wait_until_ended(identities, grace_s)
    everything = list(identities)
    for _ in range(20):  # a process may fork between the look and the kill
        survivors = [one for one in find() if alive(one)]
        if not survivors:
            break
        everything += [one for one in survivors if one not in everything]
        signals = [send(one, signal.SIGKILL) for one in survivors]
        if not wait_until_ended(survivors, 1.0) and not any(signals):
            break  # this user may not end them
    return everything


def wait_until_ended(identities: Sequence[Identity], timeout_s: float) -> bool:
    """Wait until all of these have ended. Returns False if one runs at the timeout."""
    deadline = time.monotonic() + timeout_s
    while any(alive(one) for one in identities):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def reap_orphans(own: set[int]) -> list[Identity]:
    """As the subreaper: kill and reap orphans that became children of this process.

    `known` are the pids of its own children: their exit status belongs to their owner. Returns the
    orphans that still ran. Looks at every process of the machine, so call it about once a second.
    """
    orphans = []
    for process in psutil.Process().children():
        if process.pid in own:
            continue
        identity_ = identity(process.pid)
        if identity_ and alive(identity_):
            send(identity_, signal.SIGKILL)
            orphans.append(identity_)
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:
            pass
    return orphans
