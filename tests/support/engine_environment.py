"""Runs test modules again in the engine environment, where vLLM is."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PYTHON: Final = ROOT / ".venv-engine" / "bin" / "python"
MODEL: Final = Path(
    os.environ.get("TAILRACE_TEST_MODEL")
    or Path.home() / ".cache" / "tailrace" / "models" / "smollm2-135m-instruct"
)
HERE: Final = importlib.util.find_spec("vllm") is not None


async def run_again(*arguments: str, timeout_s: float = 1_100) -> None:
    """Run pytest there with these arguments: paths of modules below the root, and options."""
    if not PYTHON.exists() or not MODEL.is_dir():
        pytest.skip("vLLM is NOT tested: no engine environment or no model here (make install)")
    # The tests' own tools come behind everything the engine environment has.
    site = next(p for p in sys.path if p.endswith("site-packages"))
    program = (
        f"import sys; sys.path.append({site!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    options = ["-q", *arguments, "-p", "no:cacheprovider", "-W", "default"]
    ran = await asyncio.to_thread(
        subprocess.run,
        [str(PYTHON), "-c", program, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]
    assert " passed" in ran.stdout
