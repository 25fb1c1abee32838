"""What `tailrace doctor` says of the pools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli import doctor

FILE = """
pools:
  a: {{models: [m], source: {folder}}}
  b: {{models: [n], tokenizer: {folder}}}
auto: [{{model: m}}]
"""


def test_pools_that_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAILRACE_POOLS", raising=False)
    assert doctor.pools().level == "ok"


def test_a_file_of_pools_and_a_folder_that_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pools.yaml"
    monkeypatch.setenv("TAILRACE_POOLS", str(file))
    file.write_text(FILE.format(folder=tmp_path))
    found = doctor.pools()
    assert (found.level, found.text) == ("ok", f"a, b, and rules of auto: 1 ({file})")
    file.write_text(FILE.format(folder=tmp_path / "gone"))
    found = doctor.pools()
    assert (found.level, found.text) == (
        "problem",
        f"pool a: source: there is no folder {tmp_path / 'gone'}",
    )
    assert str(file) in found.cure
