"""Parts of an installation: steps, their output, and Debian packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tailrace.local import paths, processes
from tailrace.local.console import Console

SHOW_S = 0.5  # between two updates of the display
LOGS = paths.cache() / "install-logs"

_apt_lock = threading.Lock()


class InstallError(Exception):
    """A step failed. The text says what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an installation.

    Attributes:
        name: what messages call it.
        done: whether nothing remains to be done. Quick, and checks only this machine.
        do: does it, which may take minutes. Raises InstallError.
    """

    name: str
    done: Callable[[], bool]
    do: Callable[[], None]

    def due(self) -> bool:
        """Whether it must be done. True too if the check needs an earlier step's result."""
        try:
            return not self.done()
        except processes.StartError:
            return True


@dataclass(slots=True)
class Progress:
    """What an installation prints. Its methods may be called from any thread.

    Attributes:
        console: gets the lines.
        running: when each running step began, by name (monotonic).
        performed: how many steps were done.
    """

    console: Console = field(default_factory=Console)
    running: dict[str, float] = field(default_factory=dict)
    performed: int = 0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the running steps with their seconds until the block ends."""
        stop = threading.Event()

        def show() -> None:
            while not stop.wait(SHOW_S):
                now = time.monotonic()
                steps = [f"{name} {now - began:.0f} s" for name, began in [*self.running.items()]]
                if steps:
                    self.console.status(f"installing {', '.join(steps)}")

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.console.clear()

    def perform(self, step: Step) -> None:
        """Do a step, unless it is done. Raises InstallError."""
        if step.done():
            return
        began = self.running[step.name] = time.monotonic()
        try:
            step.do()
        finally:
            del self.running[step.name]
        self.performed += 1
        self.console.line(f"  installed {step.name} in {time.monotonic() - began:.0f} s")


def run_logged(
    step: str,
    command: Sequence[str | Path],
    *,
    cwd: Path = paths.ROOT,
    environ: dict[str, str] | None = None,
) -> None:
    """Run a command with its output in the step's log file.

    Several installers run at once, and their mixed output could not be read. The end of the file
    is part of the error.

    Raises:
        InstallError: the command failed.
    """
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{step.replace(' ', '-')}.log"
    with log.open("ab") as output:
        process = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise InstallError(
            f"{step}: `{' '.join(str(part) for part in command[:4])} …` "
            f"failed:\n{tail}\n(all of it: {log})"
        )


def apt(step: str, packages: Sequence[str], otherwise: str) -> None:
    """Install Debian packages.

    Raises:
        InstallError: with the text `otherwise` if this user may not, or if apt-get failed.
    """
    if not shutil.which("apt-get"):
        raise InstallError(otherwise)
    sudo: list[str] = []
    if os.geteuid() != 0:
        sudo = ["sudo", "-n"]
        if (
            not shutil.which("sudo")
            or subprocess.run([*sudo, "true"], capture_output=True, check=False).returncode != 0
        ):
            raise InstallError(otherwise)
    with _apt_lock:
        # A failed update is not an error yet: the installation fails if the lists are missing.
        subprocess.run([*sudo, "apt-get", "update", "-qq"], capture_output=True, check=False)
        run_logged(
            step,
            [
                *sudo,
                "env",
                "DEBIAN_FRONTEND=noninteractive",
                "apt-get",
                "install",
                "-qq",
                "-y",
                "--no-install-recommends",
                *packages,
            ],
        )


def digest(*files: Path) -> str:
    """One hash over names and contents. A change of any input makes a step due again."""
    total = hashlib.sha256()
    for file in sorted(files):
        total.update(f"{file.name}\0".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def has_stamp(stamp: Path, content: str) -> bool:
    """Whether a step left this stamp when it was done."""
    return stamp.exists() and stamp.read_text() == content


def perform_lane(steps: Sequence[Step], progress: Progress) -> InstallError | None:
    """Do the remaining steps, in order. Returns the error that ended them, if any."""
    for step in steps:
        try:
            progress.perform(step)
        except InstallError as error:
            return error
        except processes.StartError as error:
            return InstallError(f"{step.name}: {error}")
    return None
