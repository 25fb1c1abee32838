"""What is missing is said, and altered jars are found."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from pipelines.analytics import programs


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(b"jar").hexdigest()
    monkeypatch.setattr(programs, "locked_sums", lambda: {"a.jar": digest, "b.jar": digest})


@pytest.mark.usefixtures("sums")
def test_missing_altered_and_unexpected_jars_are_named(tmp_path: Path) -> None:
    for name, content in (("a.jar", b"jar"), ("b.jar", b"altered"), ("c.jar", b"jar")):
        (tmp_path / name).write_bytes(content)
    assert programs.wrong_jars(tmp_path) == ["b.jar", "c.jar"]
    (tmp_path / "a.jar").unlink()
    assert programs.wrong_jars(tmp_path) == ["a.jar", "b.jar", "c.jar"]


@pytest.mark.usefixtures("sums")
def test_without_maven_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "jars", lambda: tmp_path / "lib")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(programs.Missing, match="apt-get install maven"):
        programs.ensure_jars()


def test_without_a_compiler_it_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime alone, as the product needs, is not enough."""
    monkeypatch.setattr(programs, "find_java", lambda: tmp_path / "java")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(programs.Missing, match="jdk"):
        programs.find_javac()
