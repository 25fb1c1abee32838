"""Results of the trials of an engine's fields, in one file for each engine (`field_trials`).

A file is a cache: without it, or if it is unreadable, the fields are tried again. A lock file keeps
two workers from the same trials at once. The file's name is a digest of what decides the results,
so that another version, model, argument or machine has another file.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from tailrace import telemetry

LOCK_POLL_S: Final = 0.1


class Verdict(enum.Enum):
    """The outcome of the trials of a field."""

    TAKEN = "taken"
    REFUSED = "refused"  # the engine said so
    FATAL = "fatal"  # the engine ended


class _Stored(msgspec.Struct):
    verdicts: dict[str, Verdict] = {}
    ends: dict[str, int] = {}


class TrialResults:
    """The results of one engine.

    Attributes:
        verdicts: by the names of fields (`engine_fields.TABLE`).
        ends: how often the engine, or this worker's process, ended in a trial of a field that has
            no verdict.
        _path: None if they are in memory only.
    """

    def __init__(self, folder: Path | None, key: str) -> None:
        """`key`: what decides the results; empty if they are not stored."""
        digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        self._path = folder / f"{digest}.json" if folder is not None and key else None
        self.verdicts: dict[str, Verdict] = {}
        self.ends: dict[str, int] = {}
        self.read()

    def read(self) -> None:
        """Read the file; an unreadable one counts as empty."""
        if self._path is None:
            return
        stored = _Stored()
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeError):
            stored = msgspec.json.decode(self._path.read_bytes(), type=_Stored)
        self.verdicts, self.ends = stored.verdicts, stored.ends

    def begin(self, name: str) -> int:
        """Count a trial as an end of the engine until `end` is called: this process may end with
        it. Returns the number of ends including this one."""
        self.ends[name] = self.ends.get(name, 0) + 1
        self._write()
        return self.ends[name]

    def end(self, name: str) -> None:
        """A trial did not end the engine, or was not run to its end."""
        self.ends[name] -= 1
        self._write()

    def decide(self, name: str, verdict: Verdict) -> None:
        self.verdicts[name] = verdict
        self.ends.pop(name, None)
        self._write()

    @contextlib.asynccontextmanager
    async def lock(self, wait_s: float) -> AsyncIterator[None]:
        """Hold the lock, and read the results of others. After `wait_s` seconds continue without
        it: two workers may then run the same trials."""
        lock = self._open_lock()
        try:
            if lock is not None:
                await _lock(lock, wait_s)
                self.read()
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def _open_lock(self) -> int | None:
        if self._path is None:
            return None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            self._give_up(error)
            return None

    def _write(self) -> None:
        if self._path is None:
            return
        fresh = self._path.with_suffix(f".{os.getpid()}")
        stored = _Stored(self.verdicts, {name: n for name, n in self.ends.items() if n})
        try:
            fresh.write_bytes(msgspec.json.format(msgspec.json.encode(stored)))
            fresh.replace(self._path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Continue without a cache that cannot be written."""
        self._path = None
        telemetry.log(telemetry.Action.TASK_FAILED, part="results of trials", exc_info=error)


async def _lock(file: int, wait_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    await asyncio.sleep(LOCK_POLL_S)
