"""Runs every tier (`make test`): gates, then unit, contract, services, attacks, faults, journey.

The summary has one line for everything that was skipped, with the reason.

python scripts/test.py [TIER …] [-- PYTEST OPTIONS]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from scripts import check, test_tools

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
RESULTS = ROOT / "test-results"
TIERS = ("unit", "contract", "services", "attacks", "faults", "journey")

# A tier that hangs must end with a message before CI ends the job.
TIER_S = {
    "unit": 900,
    "contract": 2100,
    "services": 2100,
    "attacks": 1200,
    "faults": 1200,
    "journey": 2100,
}
# A third of the time of unit tests is waiting, so a core has more than one process. Tests of
# services, faults and journeys wait for starts, deadlines and rebalances, and each file has its own
# servers. The real engine takes half of the contract tier.
PROCESSES = {
    "unit": ("-n", str(min(4, 1 + (os.cpu_count() or 1)))),
    "contract": ("-n", "2", "--dist", "loadfile"),
    "services": ("-n", "3", "--dist", "loadfile"),
    "faults": ("-n", "2", "--dist", "loadfile"),
    "journey": ("-n", "2", "--dist", "loadfile"),
}


@dataclass(slots=True)
class Result:
    """The result of one tier.

    Attributes:
        code: pytest's exit code.
        failures: names of the tests that failed.
        skips: reason -> number of tests.
        left_out: why none of it ran; empty if it ran.
    """

    tier: str
    code: int = 0
    elapsed_s: float = 0.0
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)
    left_out: str = ""

    @property
    def line(self) -> str:
        """The summary line."""
        if self.left_out:
            return f"tier {self.tier:<9} SKIPPED: {self.left_out}"
        skipped = sum(self.skips.values())
        outcome = "ok" if self.code == 0 else "FAILED"
        return (
            f"tier {self.tier:<9} {outcome:<7} {self.passed} passed, {len(self.failures)} "
            f"failed, {skipped} skipped in {self.elapsed_s:.0f} s"
        )


def read_report(result: Result, text: str) -> None:
    """Add counts and skip reasons from pytest's JUnit report."""
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - pytest wrote it
        skipped = case.find("skipped")
        if skipped is not None:
            result.skips[skipped.get("message") or "no reason given"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failures.append(f"{case.get('classname')}.{case.get('name')}")
        else:
            result.passed += 1


def perform(tier: str, options: list[str]) -> Result:
    """Run one tier."""
    result = Result(tier)
    folder = ROOT / "tests" / tier
    if not list(folder.rglob("test_*.py")):
        result.left_out = "there are no tests in it"
        return result
    report = RESULTS / f"{tier}.xml"
    report.unlink(missing_ok=True)
    command = [
        str(PYTHON),
        "-m",
        "pytest",
        str(folder.relative_to(ROOT)),
        "-q",
        "--durations=5",
        f"--junitxml={report}",
        *PROCESSES.get(tier, ()),
        *options,
    ]
    began = time.monotonic()
    try:
        result.code = subprocess.run(
            command, cwd=ROOT, env=environment(), timeout=TIER_S[tier], check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"the tier did not end within {TIER_S[tier]} s")
        result.code = 124
    result.elapsed_s = time.monotonic() - began
    if report.exists():
        read_report(result, report.read_text())
    if result.code == 5:  # pytest: nothing was collected
        result.left_out, result.code = "no test of it was selected", 0
    elif not result.passed and not result.failures and result.skips:
        result.left_out = "; ".join(result.skips)
    return result


def environment() -> dict[str, str]:
    """The caller's environment with Node and the development environment on PATH."""
    from tailrace.local import install_page

    path = install_page.node_path() or os.environ.get("PATH", "")
    return {**os.environ, "PATH": f"{PYTHON.parent}{os.pathsep}{path}"}


def header(text: str) -> None:
    """Print a heading."""
    print(f"\n===== {text} {'=' * max(3, 100 - len(text))}", flush=True)


def main(arguments: list[str]) -> int:
    """Returns an exit code."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    chosen, options = arguments[:split], arguments[split + 1 :]
    unknown = set(chosen) - set(TIERS)
    if unknown:
        print(
            f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(TIERS)}",
            file=sys.stderr,
        )
        return 2
    tiers = [tier for tier in TIERS if tier in chosen or not chosen]
    began = time.monotonic()
    RESULTS.mkdir(exist_ok=True)
    gates: list[check.Outcome] = []
    if not chosen:
        header("gates")
        gates = check.run(tests=False)
    missing = test_tools.prepare(tiers)
    results = []
    for tier in tiers:
        if tier == "faults" and not (ROOT / "tests" / tier).is_dir():
            continue
        header(f"tier {tier}")
        results.append(perform(tier, options))
    summarise(results, gates, missing)
    failed = sum(len(result.failures) for result in results)
    counts = [f"{failed} failed"] if failed else []
    counts += [
        f"{sum(result.passed for result in results)} passed",
        f"{sum(sum(result.skips.values()) for result in results)} skipped",
    ]
    bad = bool(gates) or any(result.code != 0 for result in results)
    print(
        f"{'FAILED' if bad else 'OK'}\n===== {', '.join(counts)} in "
        f"{time.monotonic() - began:.2f}s ====="
    )
    return 1 if bad else 0


def summarise(results: list[Result], gates: list[check.Outcome], missing: list[str]) -> None:
    """Say what failed and what was left out. CI shows the end of the output, so all of it is here.

    Args:
        gates: those that failed.
        missing: tools that could not be installed, a sentence for each.
    """
    header("summary")
    for line in missing:
        print(line)
    for outcome in gates:
        print(f"gate {outcome.gate.name:<9} FAILED")
        for line in outcome.output.strip().splitlines()[-5:]:
            print(f"     {line}")
    for result in results:
        print(result.line)
        for name in result.failures:
            print(f"     failed: {name}")
        if not result.left_out:
            for reason, count in result.skips.most_common():
                print(f"     {count} skipped: {reason}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
