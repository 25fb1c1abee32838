"""The supervisor's state file (`state.json`), which `ps`, `down` and a later `up` read.

Whether a supervisor is alive is decided by the lock, not by the file: the kernel releases the lock
however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Literal

import msgspec

from tailrace.local import processes

SCRATCH_PREFIX = "tailrace-"

Role = Literal["supervisor", "kafka", "redis", "gateway", "push", "worker", "archive", "engine"]
Phase = Literal["starting", "serving", "ready", "stopping", "stopped"]


class Part(msgspec.Struct, kw_only=True):
    """One process of the deployment.

    Attributes:
        started: its start in clock ticks since boot; with the pid it identifies the process.
        address: what clients of this part use; empty without clients.
        probe: a URL that answers 200 when the part is ready; empty if an open port is enough.
        exit_code: None while it runs.
        restarts: how often the supervisor started it again.
        last_exit: exit code of the process before this one; None before the first restart.
        since: when the process started, in seconds since the epoch.
    """

    name: str
    role: Role
    pid: int
    started: int
    address: str = ""
    probe: str = ""
    log: str = ""
    exit_code: int | None = None
    ready: bool = False
    detail: str = ""
    restarts: int = 0
    last_exit: int | None = None
    since: float = 0.0

    @property
    def identity(self) -> processes.Identity:
        return processes.Identity(self.pid, self.started)


class State(msgspec.Struct, kw_only=True):
    """The state of one deployment on this machine."""

    version: int = 1
    run: str  # the mark in every process's environment
    supervisor: Part
    phase: Phase = "starting"
    engine: str = ""
    model: str = ""
    url: str = ""  # the first gateway
    urls: list[str] = []
    push_urls: list[str] = []
    kafka: str = ""
    redis: str = ""
    pools: str = ""
    scratch: str = ""  # folder of the sockets of vLLM's processes
    kafka_port: int = 0  # kept for the next start; 0: none chosen yet
    parts: list[Part] = []


def load(path: Path) -> State | None:
    """Read the state file. None when it is missing or of another version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return None


def save(path: Path, state: State) -> None:
    """Replace the state file atomically, so that readers never see half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    fresh.rename(path)


def make_scratch() -> str:
    """A new folder for the sockets of a run. It has a short path: the path of a socket has at most
    107 characters (unix(7))."""
    return tempfile.mkdtemp(prefix=SCRATCH_PREFIX)


def remove_scratch(state: State) -> None:
    """Remove the sockets of a run whose processes have ended."""
    if Path(state.scratch).name.startswith(SCRATCH_PREFIX):
        shutil.rmtree(state.scratch, ignore_errors=True)


class AlreadyRunning(Exception):
    """Another supervisor holds this data folder."""


def hold(path: Path) -> IO[bytes]:
    """Lock the data folder until the returned file is closed or the process ends.

    Children do not inherit the lock.

    Raises:
        AlreadyRunning: another supervisor holds the lock.
    """
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AlreadyRunning from error
    return lock


def is_held(path: Path) -> bool:
    """Whether a supervisor holds the lock of this data folder."""
    if not path.exists():
        return False
    try:
        hold(path).close()
    except AlreadyRunning:
        return True
    return False
