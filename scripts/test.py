"""Runs the gates and the tests (`make test`), or the long tests (`make nightly`).

All tests are one run of pytest on several processes (`tests/support/scheduling.py`); the gates run
at the same time. The summary counts by tier, and has one line for each reason of skips.
`test-results/durations.json` has the time of each file. A file that takes three times
as long as `tests/budgets.json` expects fails the run.

python scripts/test.py [--nightly] [TIER ...] [-- PYTEST OPTIONS]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from scripts import check, test_tools

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
RESULTS = ROOT / "test-results"
BUDGETS = ROOT / "tests" / "budgets.json"
TIERS = ("unit", "contract", "services", "attacks", "faults", "journey")

# A run that hangs must end with a message before CI ends the job (90 minutes).
LIMIT_S = 4_200
NIGHTLY_LIMIT_S = 4 * 3600
ALLOWED = 3  # times what is expected of a file
# More than the cores: tests of services, faults and journeys wait for starts, deadlines and
# rebalances. Each process may have a deployment of its own, so with more of them everything waits
# longer, and the run does not end sooner.
PROCESSES = 1 + (os.cpu_count() or 1)


@dataclass(slots=True)
class Result:
    """The result of one tier.

    Attributes:
        failures: names of the tests that failed.
        skips: reason -> number of tests.
    """

    tier: str
    elapsed_s: float = 0.0
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)

    @property
    def line(self) -> str:
        """The summary line."""
        skip_count = sum(self.skips.values())
        if not self.passed and not self.failures:
            return f"tier {self.tier:<9} SKIPPED: {'; '.join(self.skips) or 'no test of it'}"
        outcome = "FAILED" if self.failures else "ok"
        return (
            f"tier {self.tier:<9} {outcome:<7} {self.passed} passed, {len(self.failures)} "
            f"failed, {skip_count} skipped; {self.elapsed_s:.0f} s of tests"
        )


@dataclass(slots=True)
class Report:
    """What pytest reported. `seconds` and `count`: of the tests of a file."""

    tiers: dict[str, Result]
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    count: Counter[str] = field(default_factory=Counter)


def file_of(classname: str) -> str:
    """The path of the test module that JUnit's `classname` names."""
    parts = classname.split(".")
    for end in range(len(parts), 0, -1):
        path = Path(*parts[:end]).with_suffix(".py")
        if (ROOT / path).is_file():
            return path.as_posix()
    return classname  # a module that could not be imported


def read_report(text: str) -> Report:
    """Counts, skip reasons and seconds of pytest's JUnit report."""
    report = Report({tier: Result(tier) for tier in TIERS})
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - pytest wrote it
        classname = case.get("classname") or case.get("name") or ""
        file, seconds = file_of(classname), float(case.get("time") or 0)
        report.seconds[file] += seconds
        report.count[file] += 1
        tier = next((t for t in TIERS if file.startswith((f"tests/{t}/", f"tests.{t}."))), "unit")
        result = report.tiers[tier]
        result.elapsed_s += seconds
        skipped = case.find("skipped")
        if skipped is not None:
            result.skips[skipped.get("message") or "no reason given"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            result.failures.append(f"{classname}.{case.get('name')}")
        else:
            result.passed += 1
    return report


def over_budget(
    seconds: Mapping[str, float], budgets: Mapping[str, float], default_s: float
) -> list[str]:
    """One line for each file that took more than ALLOWED times what is expected of it.

    Args:
        seconds: by file, as measured.
        expected: by file, on an idle machine. Others are expected to take `default_s`. On a slow or
            busy machine all files take longer, so what is expected grows by the median of that.
    """
    ratios = [seconds[file] / budget_s for file, budget_s in budgets.items() if file in seconds]
    slowness = max(1.0, statistics.median(ratios)) if ratios else 1.0
    return [
        f"{file} took {duration_s:.0f} s; {budget:.0f} s are expected of it (tests/budgets.json)"
        for file, duration_s in sorted(seconds.items())
        if duration_s > ALLOWED * (budget := budgets.get(file, default_s) * slowness)
    ]


def run_pytest(tiers: Iterable[str], options: list[str], *, nightly: bool) -> tuple[int, Report]:
    """Run the tests of these tiers. Returns pytest's exit code, 124 when it took too long, and
    what it reported."""
    junit = RESULTS / ("nightly.xml" if nightly else "test.xml")
    junit.unlink(missing_ok=True)
    command = [
        *(str(PYTHON), "-m", "pytest", *(f"tests/{tier}" for tier in tiers)),
        *("-m", "nightly" if nightly else "not nightly"),
        *("-q", "--durations=15", f"--junitxml={junit}"),
        *("-n", str(PROCESSES), "--dist", "loadfile", "--no-loadscope-reorder"),
        *options,
    ]
    limit_s = NIGHTLY_LIMIT_S if nightly else LIMIT_S
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=environment(nightly=nightly), timeout=limit_s, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"the tests did not end within {limit_s} s")
        code = 124
    text = junit.read_text() if junit.exists() else "<testsuites/>"
    return code, read_report(text)


def environment(*, nightly: bool) -> dict[str, str]:
    """The caller's environment with Node and the development environment on PATH."""
    from tailrace.local import install_page

    path = install_page.node_path() or os.environ.get("PATH", "")
    more = {"TAILRACE_TEST_LONG": "1"} if nightly else {}
    return {**os.environ, "PATH": f"{PYTHON.parent}{os.pathsep}{path}", **more}


class Gates(threading.Thread):
    """Gates, one after the other during the tests: those of `make check` without the unit tests, or
    their coverage (`make nightly`).

    Attributes:
        failed: those that failed; complete when the thread has ended.
    """

    def __init__(self, gates: list[check.Gate]) -> None:
        super().__init__(name="gates")
        self._gates = gates
        self.failed: list[check.Outcome] = []

    def run(self) -> None:
        self.failed = check.run(self._gates, at_once=1)


def header(text: str) -> None:
    """Print a heading."""
    print(f"\n===== {text} {'=' * max(3, 100 - len(text))}", flush=True)


def main(arguments: list[str]) -> int:
    """Returns an exit code."""
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split], arguments[split + 1 :]
    nightly = "--nightly" in names
    names = [each for each in names if each != "--nightly"]
    unknown = set(names) - set(TIERS)
    if unknown:
        print(
            f"no such tier: {', '.join(sorted(unknown))}; there are {', '.join(TIERS)}",
            file=sys.stderr,
        )
        return 2
    tiers = [tier for tier in TIERS if tier in names or not names]
    began = time.monotonic()
    RESULTS.mkdir(exist_ok=True)
    missing = test_tools.prepare([*tiers, "nightly"] if nightly else tiers)
    header(f"{'nightly ' if nightly else ''}tests: {', '.join(tiers)}")
    gates = None
    if not names:
        gates = Gates([check.COVERAGE] if nightly else check.gates(tests=False))
        gates.start()
    code, report = run_pytest(tiers, options, nightly=nightly)
    if gates is not None:
        gates.join()
    budgets = json.loads(BUDGETS.read_text())
    over = [] if nightly else over_budget(report.seconds, budgets["files"], budgets["default_s"])
    wall_s = time.monotonic() - began
    keep_durations(report, wall_s, nightly=nightly)
    failed_gates = gates.failed if gates is not None else []
    summarise([report.tiers[tier] for tier in tiers], failed_gates, [*missing, *over])
    results = report.tiers.values()
    failed = sum(len(result.failures) for result in results)
    counts = [f"{failed} failed"] if failed else []
    counts += [
        f"{sum(result.passed for result in results)} passed",
        f"{sum(sum(result.skips.values()) for result in results)} skipped",
    ]
    bad = bool(failed_gates or over or code)
    print(f"{'FAILED' if bad else 'OK'}\n===== {', '.join(counts)} in {wall_s:.2f}s =====")
    return 1 if bad else 0


def keep_durations(report: Report, wall_s: float, *, nightly: bool) -> None:
    """Write seconds and tests by file, the longest first, with those of the run: `cpu_s` of all
    processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = {
        file: {"seconds": round(seconds, 1), "tests": report.count[file]}
        for file, seconds in sorted(report.seconds.items(), key=lambda each: -each[1])
    }
    run = {
        "wall_s": round(wall_s, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "files": files,
    }
    name = "nightly-durations.json" if nightly else "durations.json"
    (RESULTS / name).write_text(json.dumps(run, indent=1) + "\n")


def summarise(results: list[Result], gates: list[check.Outcome], notes: list[str]) -> None:
    """Print failures and skips. CI shows the end of the output, so all of it is here.

    Args:
        gates: those that failed.
        notes: a sentence for each tool that could not be installed, and each file over its budget.
    """
    header("summary")
    for line in notes:
        print(line)
    for outcome in gates:
        print(f"gate {outcome.gate.name:<9} FAILED")
        for line in outcome.output.strip().splitlines()[-5:]:
            print(f"     {line}")
    for result in results:
        print(result.line)
        for name in result.failures:
            print(f"     failed: {name}")
        for reason, count in result.skips.most_common():
            print(f"     {count} skipped: {reason}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
