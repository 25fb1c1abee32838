"""`tailrace keys`: files of record keys."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tailrace.cli import main, record_keys
from tailrace.protocol import record_tags, topics


def run(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(main.app, list(words), env=environ)


def ring(file: Path) -> record_tags.Keyring:
    return record_tags.parse(file.read_bytes())


def test_a_new_file_has_a_key_of_its_own_for_each_role(tmp_path: Path) -> None:
    file, other = tmp_path / "keys.json", tmp_path / "other.json"
    assert run("keys", str(file)).exit_code == 0
    assert run("keys", str(other)).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    made = ring(file)
    assert not made.accepts_untagged
    tags = {
        made.tag(made.signing_key(role, 0.0)[0], topics.TOKENS, 0, b"k", b"v").partition(b":")[2]
        for role in record_tags.ROLES
    }
    assert len(tags) == len(record_tags.ROLES)
    tag = made.tag("worker-1", topics.TOKENS, 0, b"k", b"v")
    assert made.forgery(topics.TOKENS, 0, b"k", b"v", [("tag", tag)]) is None
    assert ring(other).forgery(topics.TOKENS, 0, b"k", b"v", [("tag", tag)]) == "wrong tag"


def test_for_a_log_that_has_records_already(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    assert run("keys", str(file), "--accept-untagged").exit_code == 0
    assert ring(file).accepts_untagged


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    run("keys", str(file))
    before = file.read_bytes()
    result = run("keys", str(file))
    assert (result.exit_code, "--rotate" in result.output) == (2, True)
    assert file.read_bytes() == before


def test_new_keys_sign_later_and_the_old_ones_stay(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    run("keys", str(file))
    tag = ring(file).tag("worker-1", topics.TOKENS, 0, b"k", b"v")
    result = run("keys", str(file), "--rotate", "--in", "2h")
    assert result.exit_code == 0, result.output
    later = ring(file)
    name, changes = later.signing_key("worker", 0.0)
    assert name == "worker-1"
    assert later.signing_key("worker", changes)[0] != "worker-1"
    assert later.forgery(topics.TOKENS, 0, b"k", b"v", [("tag", tag)]) is None
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        (None, ("--rotate",), "No such file"),
        (b"{}", ("--rotate",), "keys"),
        (None, ("--rotate", "--in", "soon"), "no span"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, content: bytes | None, words: tuple[str, ...], says: str
) -> None:
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_bytes(content)
    result = run("keys", str(file), *words)
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert result.output.startswith("keys: ")


@pytest.mark.parametrize("command", [("verify",), ("revoke", "--list"), ("topics", "apply")])
def test_a_command_on_the_log_reads_its_keys_first(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    file = tmp_path / "keys.json"
    result = run(*command, TAILRACE_RECORD_KEYS=str(file), TAILRACE_DATA=str(tmp_path))
    assert result.exit_code == 2
    assert "TAILRACE_RECORD_KEYS" in result.output
    record_keys.create(file, accept_untagged=False, say=print)
    file.write_bytes(file.read_bytes().replace(b"worker", b"walker"))
    result = run(*command, TAILRACE_RECORD_KEYS=str(file), TAILRACE_DATA=str(tmp_path))
    assert result.exit_code == 2
    assert "is not a file of record keys" in result.output
