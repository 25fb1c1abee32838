"""`tailrace up`: what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tailrace.cli import main


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--engine", "gpt"], "--engine gpt"), (["--gateways", "0"], "--gateways 0")],
)
def test_a_bad_option_is_named_before_anything_is_started(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    data = tmp_path / "data"
    result = CliRunner().invoke(main.app, ["up", *arguments, "--data", str(data)])
    assert result.exit_code == 2
    assert text in result.output
    assert not data.exists()


def test_wipe_leaves_a_folder_without_the_marker_alone(tmp_path: Path) -> None:
    precious = tmp_path / "kafka" / "precious"
    precious.parent.mkdir()
    precious.touch()
    words = ["up", "--engine", "scripted", "--wipe", "--data", str(tmp_path)]
    result = CliRunner().invoke(main.app, words)
    assert result.exit_code == 2
    assert "is not a data folder of Tailrace" in result.output
    assert precious.exists()
