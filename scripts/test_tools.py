"""Installs the Debian packages that tests need: `python scripts/test_tools.py [TIER …]`.

A package that cannot be installed is reported, and the tests that need it skip themselves.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FIREFOX = ("firefox-esr", "firefox")


@dataclass(frozen=True, slots=True)
class Tool:
    """A program or library of the machine that tests need.

    Attributes:
        package: the Debian package that has it.
        tests: what is skipped without it.
        tiers: the tiers with these tests, or "nightly".
        present: whether the machine has it.
    """

    package: str
    tests: str
    tiers: frozenset[str]
    present: Callable[[], bool]


def postgres(program: str) -> Path | None:
    """The path of a program of the newest installed PostgreSQL; None without one. Debian does not
    put the server's programs into the search path."""
    paths = sorted(DEBIAN_POSTGRES.glob(f"*/bin/{program}"), key=lambda p: float(p.parts[-3]))
    on_path = shutil.which(program)
    return paths[-1] if paths else Path(on_path) if on_path else None


TOOLS = (
    Tool(
        "chromium",
        "browser tests",
        frozenset({"journey", "services"}),
        lambda: any(shutil.which(name) for name in CHROMIUM),
    ),
    Tool(
        "firefox-esr",
        "browser tests in Firefox",
        frozenset({"nightly"}),
        lambda: any(shutil.which(name) for name in FIREFOX),
    ),
    Tool(
        "postgresql",
        "tests of the archive on PostgreSQL",
        frozenset({"contract", "services"}),
        lambda: postgres("initdb") is not None,
    ),
    Tool(
        "faketime",
        "tests of wrong clocks",
        frozenset({"faults"}),
        lambda: any(Path("/usr/lib").glob("**/faketime/libfaketimeMT.so.1")),
    ),
)


def prepare(tiers: Sequence[str], tools: Sequence[Tool] = TOOLS) -> list[str]:
    """Install what these tiers need and the machine lacks.

    Returns one line for each tool that cannot be installed: what is skipped, and why.
    """
    from tailrace.local import install_steps

    missing = []
    for tool in tools:
        if tool.tiers.isdisjoint(tiers) or tool.present():
            continue
        ask = f"ask for: apt-get install {tool.package}"
        try:
            install_steps.apt(tool.package, [tool.package], ask)
        except install_steps.InstallError as error:
            reason = str(error).splitlines()[0]
            missing.append(
                f"{tool.tests} are skipped: {reason}{'' if ask in reason else f'; {ask}'}"
            )
            continue
        if not tool.present():
            missing.append(f"{tool.tests} are skipped: the package {tool.package} does not help")
    return missing


if __name__ == "__main__":
    for line in prepare(sys.argv[1:]):
        print(line)
