"""The quick tier (`make check`): runs every gate in parallel and prints one line for each, with the
output of those that failed."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"


@dataclass(frozen=True, slots=True)
class Gate:
    """One command. It passes when it exits with 0."""

    name: str
    command: tuple[str, ...]
    where: Path = ROOT


@dataclass(frozen=True, slots=True)
class Outcome:
    gate: Gate
    code: int
    output: str
    seconds: float


# More than the cores: many tests wait. The other gates run at the same time.
PROCESSES = 1 + (os.cpu_count() or 1)

# The unit tests, three times as slow. Fails below the figure in pyproject.toml.
COVERAGE = Gate(
    "coverage",
    (
        str(BIN / "pytest"),
        "tests/unit",
        "-q",
        "-p",
        "no:cacheprovider",
        "--cov",
        "--cov-report=term",
    ),
)

PACKAGES = tuple(
    name
    for name in ("gateway", "push", "worker", "pipelines", "tailrace")
    if (ROOT / name).is_dir()
)


def gates(*, tests: bool) -> list[Gate]:
    """Every gate. The long ones come first, so that the short ones fill the gaps."""
    unit = (
        [
            Gate(
                "unit tests",
                (
                    str(BIN / "pytest"),
                    "tests/unit",
                    "-m",
                    "not nightly",
                    "-q",
                    "-p",
                    "no:cacheprovider",
                    "-n",
                    str(PROCESSES),
                    "--dist",
                    "worksteal",
                ),
            )
        ]
        if tests
        else []
    )
    all_gates = [
        *unit,
        Gate("types", (str(BIN / "mypy"),)),
        Gate("format", (str(BIN / "ruff"), "format", "--check", "--quiet", ".")),
        Gate("lint", (str(BIN / "ruff"), "check", "--quiet", ".")),
        Gate("import contracts", (str(BIN / "lint-imports"),)),
        Gate("file map", (str(BIN / "python"), "scripts/filemap.py", "--check")),
        Gate("close codes", (str(BIN / "python"), "scripts/close_codes.py", "--check")),
        Gate("settings", (str(BIN / "python"), "scripts/settings_table.py", "--check")),
        Gate("schemas", (str(BIN / "python"), "scripts/schemas.py", "--check")),
        Gate("security lint", (str(BIN / "bandit"), "-q", "-c", "pyproject.toml", "-r", *PACKAGES)),
    ]
    if (ROOT / "k8s" / "validate.py").exists():
        all_gates.insert(2, Gate("manifests", (str(BIN / "python"), "k8s/validate.py")))
    if (ROOT / "frontend" / "package.json").exists():
        all_gates.insert(
            2, Gate("front end types", ("npm", "run", "--silent", "check"), ROOT / "frontend")
        )
        all_gates.insert(
            3, Gate("front end tests", ("npm", "run", "--silent", "test"), ROOT / "frontend")
        )
    return all_gates


def coverage(output: str) -> str:
    """Return ", coverage NN %" as pytest-cov reported it, or nothing for another gate."""
    total = re.search(r"^TOTAL .* (\d+)%$", output, re.MULTILINE)
    return f", coverage {total.group(1)} %" if total else ""


def environment() -> dict[str, str]:
    """The caller's environment, with Node on PATH."""
    from tailrace.local import install_page

    return {**os.environ, "PATH": install_page.node_path() or os.environ.get("PATH", "")}


def perform(gate: Gate) -> Outcome:
    began = time.monotonic()
    process = subprocess.run(
        gate.command,
        cwd=gate.where,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return Outcome(
        gate, process.returncode, process.stdout.decode(errors="replace"), time.monotonic() - began
    )


def run(selection: list[Gate], at_once: int = max(2, os.cpu_count() or 2)) -> list[Outcome]:
    """Run gates and print the findings of each. `at_once`: how many at the same time.

    Returns:
        Those that failed.
    """
    began = time.monotonic()
    failed: list[Outcome] = []
    with ThreadPoolExecutor(max_workers=at_once) as pool:
        for running in as_completed([pool.submit(perform, gate) for gate in selection]):
            outcome = running.result()
            print(
                (
                    f"{outcome.gate.name:<18} {'ok' if outcome.code == 0 else 'FAILED':<7} "
                    f"{outcome.seconds:5.1f} s{coverage(outcome.output)}"
                ),
                flush=True,
            )
            if outcome.code != 0:
                failed.append(outcome)
    for outcome in failed:
        print(f"\n===== {outcome.gate.name}: {' '.join(outcome.gate.command)}\n{outcome.output}")
    print(
        f"\ngates: {f'{len(failed)} failed' if failed else 'all passed'} in "
        f"{time.monotonic() - began:.1f} s"
    )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-tests", action="store_true", help="leave the unit tests out")
    return 1 if run(gates(tests=not parser.parse_args().no_tests)) else 0


if __name__ == "__main__":
    sys.exit(main())
