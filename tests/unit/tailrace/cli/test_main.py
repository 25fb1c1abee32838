"""The command itself: which of its commands a wrong setting stops."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tailrace.cli import main, terminal_chat


def run(folder: Path, *words: str) -> Result:
    """`tailrace *words` over an empty data folder, with a wrong setting of the gateway."""
    environ = {"TAILRACE_LIMITS": "{", "TAILRACE_DATA": str(folder / "data")}
    return CliRunner().invoke(main.app, list(words), env=environ)


@pytest.mark.parametrize("command", ["down", "ps", "token"])
def test_a_wrong_setting_of_a_service_does_not_stop_a_command_that_starts_none(
    tmp_path: Path, command: str
) -> None:
    result = run(tmp_path, command)
    assert result.exit_code == 0, result.output
    assert "TAILRACE_LIMITS" not in result.output


def test_a_wrong_setting_of_a_service_does_not_stop_a_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def chat(_url: str, _renew: Any, _model: str, question: str, _start: str) -> int:
        asked.append(question)
        return 0

    monkeypatch.setattr(terminal_chat, "run", chat)
    assert run(tmp_path, "chat", "hello").exit_code == 0
    assert asked == ["hello"]


def test_pipelines_that_are_not_installed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = run(tmp_path, "pipelines", "status", "reviews.yaml")
    assert result.exit_code == 2
    assert "pip install tailrace-pipelines" in result.output


@pytest.mark.parametrize("command", ["up", "gateway", "push", "worker"])
def test_a_wrong_setting_stops_a_command_that_starts_a_service_with_one_line(
    tmp_path: Path, command: str
) -> None:
    result = run(tmp_path, command)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert line.startswith("tailrace: TAILRACE_LIMITS:")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("alice",), "--kafka"),
        (("--kafka", "127.0.0.1:1"), "name a subject"),
        (("alice", "--kafka", "127.0.0.1:1"), "--issuer"),
        (("alice", "--kafka", "127.0.0.1:1", "--issuer", "i", "--for", "2y"), "no span"),
        (("alice", "--kafka", "127.0.0.1:1", "--issuer", "i", "--for", "366d"), "no span"),
    ],
)
def test_revoke_says_what_it_lacks(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    result = run(tmp_path, "revoke", *words)
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert reason in line


@pytest.mark.parametrize("scopes", ["", "everything", "create,everything"])
def test_an_unknown_scope_is_refused(tmp_path: Path, scopes: str) -> None:
    result = run(tmp_path, "token", "--scopes", scopes)
    assert result.exit_code == 2
    assert "admin, create, read" in result.output


def test_token_prints_a_credential_and_nothing_else(tmp_path: Path) -> None:
    result = run(tmp_path, "token", "--sub", "ada", "--ttl", "15m")
    assert result.exit_code == 0
    assert result.stdout.count(".") == 2
    assert result.stdout.strip().replace(".", "").replace("-", "").replace("_", "").isalnum()
    assert result.stderr == ""
