"""The engine environment, where vLLM is, and runs of pytest there.

Some modules of tests/contract are collected only there (ONLY_THERE), some also there (BOTH).
tests/contract/test_engine_environment.py runs those of their tests that have the mark `engine`.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv-engine" / "bin" / "python"
MODEL: Final = Path(
    os.environ.get("TAILRACE_TEST_MODEL")
    or Path.home() / ".cache" / "tailrace" / "models" / "smollm2-135m-instruct"
)
HERE: Final = importlib.util.find_spec("vllm") is not None
ELSEWHERE: Final = "runs in the engine environment: tests/contract/test_engine_environment.py"

CONTRACT: Final = ROOT / "tests" / "contract"
BOTH: Final = ("test_engines.py", "test_vllm_fields.py")
ONLY_THERE: Final = sorted(
    {"test_schemas.py", *(path.name for path in CONTRACT.glob("test_vllm*.py"))} - {*BOTH}
)


@dataclass
class Report:
    """A run of pytest.

    Attributes:
        code: pytest's exit code.
        output: what it printed.
        passes: number of tests that passed, by module.
        skips: name and reason of each test that was skipped.
        properties: of the run (`record_testsuite_property`).
    """

    code: int
    output: str
    passes: Counter[str] = field(default_factory=Counter)
    skips: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)

    def read(self, junit: str) -> None:
        """Add what pytest's JUnit report says."""
        root = ElementTree.fromstring(junit)  # noqa: S314 - pytest wrote it
        for case in root.iter("testcase"):
            skip = case.find("skipped")
            if skip is not None:
                self.skips.append(f"{case.get('name')}: {skip.get('message')}")
            elif case.find("failure") is None and case.find("error") is None:
                self.passes[str(case.get("classname"))] += 1
        self.properties |= {
            str(each.get("name")): str(each.get("value")) for each in root.iter("property")
        }


def run(expression: str, folder: Path, timeout_s: float) -> Report:
    """Run the engine modules there, in one process. `expression`: chooses tests by their marks.

    Raises:
        subprocess.TimeoutExpired: with the output up to then.
    """
    # The tests' own tools come behind everything the engine environment has.
    site = next(p for p in sys.path if p.endswith("site-packages"))
    program = (
        f"import sys; sys.path.append({site!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    junit = folder / "engine.xml"
    modules = [str((CONTRACT / name).relative_to(ROOT)) for name in (*BOTH, *ONLY_THERE)]
    # The first test that imports vLLM waits for it; without compiled bytecode and on a busy machine
    # that is minutes. What hangs is ended by `timeout_s`.
    options = ["-q", "-m", expression, "--durations=15", f"--junitxml={junit}"]
    options += [f"--timeout={timeout_s:.0f}"]
    ran = subprocess.run(
        [str(PYTHON), "-c", program, *modules, *options, "-p", "no:cacheprovider", "-W", "default"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    report = Report(ran.returncode, ran.stdout)
    if junit.exists():
        report.read(junit.read_text())
    return report
