"""`tailrace keys`: makes a file of record keys, and adds new keys to one."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tailrace.protocol import record_tags


def create(file: Path, *, accept_untagged: bool, say: Callable[[str], None]) -> None:
    """Write a new file with one key for each role.

    Raises:
        ValueError: there is a file already. The text is for the user.
        OSError
    """
    if file.exists():
        raise ValueError(f"{file} is there; add keys to it with --rotate")
    keys = [_new(role, "1", 0) for role in record_tags.ROLES]
    _write(file, record_tags.KeyFile(keys, "accepted" if accept_untagged else "refused"))
    say(f"wrote {file}: give it to every service with TAILRACE_RECORD_KEYS")


def rotate(file: Path, ahead_s: float, say: Callable[[str], None]) -> None:
    """Add a key for each role, which signs once `ahead_s` seconds have passed.

    Raises:
        ValueError: the file holds no record keys. The text is for the user.
        OSError
    """
    text = file.read_bytes()
    record_tags.parse(text)
    key_file = msgspec.json.decode(text, type=record_tags.KeyFile)
    begins = int(time.time() + ahead_s)
    keys = [_new(role, str(begins), begins) for role in record_tags.ROLES]
    _write(file, msgspec.structs.replace(key_file, keys=[*key_file.keys, *keys]))
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(begins))
    say(f"added keys to {file}: they sign from {at} on; restart every service with it before")


def _new(role: record_tags.Role, name: str, signs_from: int) -> record_tags.Key:
    secret = base64.b64encode(secrets.token_bytes(record_tags.SECRET_BYTES)).decode()
    return record_tags.Key(f"{role}-{name}", role, secret, signs_from)


def _write(file: Path, content: record_tags.KeyFile) -> None:
    """Replace the file in one step; only its owner may read it."""
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as writing:
        writing.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
    new.replace(file)
