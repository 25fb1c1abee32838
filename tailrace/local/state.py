"""What the supervisor writes down while it runs (`state.json`), so that `ps`, `down` and a later
`up` know what there is.

The lock, not the file, says whether a supervisor lives: the kernel lets go of it whatever way the
process ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Literal

import msgspec

from tailrace.local import processes

Role = Literal["supervisor", "kafka", "redis", "gateway", "push", "worker", "engine"]
Phase = Literal["starting", "serving", "ready", "stopping", "stopped"]


class Part(msgspec.Struct, kw_only=True):
    """One process. `started` is its start in clock ticks since boot: with the pid it names the
    process for certain."""

    name: str
    role: Role
    pid: int
    started: int
    address: str = ""  # what clients of this part use
    # URL that answers 200 when it is ready; empty for parts that are ready when they accept
    # connections
    probe: str = ""
    log: str = ""
    exit_code: int | None = None  # None while it runs
    ready: bool = False
    detail: str = ""

    @property
    def identity(self) -> processes.Identity:
        return processes.Identity(self.pid, self.started)


class State(msgspec.Struct, kw_only=True):
    """One deployment on this machine."""

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
    kafka_port: int = 0  # kept for the next start; 0: none chosen yet
    parts: list[Part] = []


def load(path: Path) -> State | None:
    """None when there is none, or one that another version wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return None


def save(path: Path, state: State) -> None:
    """Whole or not at all, also for a reader at this moment."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=2))
    fresh.rename(path)


class AlreadyRunning(Exception):
    """Another supervisor holds this data folder."""


def hold(path: Path) -> IO[bytes]:
    """Take the data folder; held until the returned file is closed or the process ends (children do
    not inherit it)."""
    lock = path.open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise AlreadyRunning from error
    return lock


def is_held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        hold(path).close()
    except AlreadyRunning:
        return True
    return False
