"""`python -m tests.attacks` (`make attacks`): every attack of `tests/attacks/rows.py` in its full
size, and one line for each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from tests.attacks import rows

ROOT: Final = Path(__file__).resolve().parents[2]
REPORT: Final = ROOT / "test-results" / "attacks.xml"


def verdicts(report: str) -> dict[str, list[str]]:
    """ "ok", "FAILED" or "skipped" of each case, by `file::function`, from a JUnit report."""
    found = defaultdict(list)
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314 - pytest wrote it
        file = case.get("classname", "").replace(".", "/") + ".py"
        verdict = "ok"
        if case.find("failure") is not None or case.find("error") is not None:
            verdict = "FAILED"
        elif case.find("skipped") is not None:
            verdict = "skipped"
        found[f"{file}::{case.get('name', '').partition('[')[0]}"].append(verdict)
    return found


def line(attack: rows.Attack, found: dict[str, list[str]]) -> str:
    """The attack, and what became of it: it is ok when all of its tests ran and none failed."""
    each = [verdict for test in attack.tests for verdict in found.get(test, ["did not run"])]
    return f"{attack.number:>3}  {_worst(each):<12} {attack.name}: {attack.expectation}"


def others(found: dict[str, list[str]]) -> list[str]:
    """A line for each test of this folder that belongs to no numbered attack."""
    numbered = {test for attack in rows.ATTACKS for test in attack.tests}
    return [
        f"  –  {_worst(found[test]):<12} {test.partition('::test_')[2].replace('_', ' ')}"
        for test in sorted(found)
        if test.startswith("tests/attacks/") and test not in numbered
    ]


def _worst(verdicts: list[str]) -> str:
    return next((v for v in ("FAILED", "did not run", "skipped") if v in verdicts), "ok")


def main() -> int:
    numbered = {test for attack in rows.ATTACKS for test in attack.tests}
    outside = sorted(test for test in numbered if not test.startswith("tests/attacks/"))
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "--durations=5", f"--junitxml={REPORT}"]
    done = subprocess.run(
        [*command, "tests/attacks", *outside],
        cwd=ROOT,
        env={**os.environ, "TAILRACE_TEST_ATTACKS": "full"},
        check=False,
    )
    found = verdicts(REPORT.read_text()) if REPORT.exists() else {}
    lines = [line(attack, found) for attack in rows.ATTACKS] + others(found)
    print("\n".join(["", "attacks by number", *lines]))
    return done.returncode or int(any("  ok " not in each for each in lines))


if __name__ == "__main__":
    sys.exit(main())
