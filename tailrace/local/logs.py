"""Follow growing log files, and format their JSON lines for people."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_READ = 1 << 20
MAX_LINE = 600

_TIME = ("time", "ts", "timestamp")
_MESSAGE_KEYS = ("action", "event", "message", "msg")
_HIDDEN_KEYS = {
    "service",
    "name",
    "logger",
    "instance",
    *_TIME,
    *_MESSAGE_KEYS,
    "level",
    "severity",
}


class Follower:
    """Returns the complete new lines of one growing file at every call of `lines`."""

    def __init__(self, path: Path, start: int = 0) -> None:
        self._path = path
        self._position = start
        self._rest = b""  # the beginning of a line that is still being written

    def lines(self) -> list[str]:
        """The complete lines since the last call. Empty when the file cannot be read."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._position)
                fresh = stream.read(MAX_READ)
        except OSError:
            return []
        self._position += len(fresh)
        *whole, self._rest = (self._rest + fresh).split(b"\n")
        return [line.decode(errors="replace") for line in whole]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def readable(line: str) -> str:
    """A JSON record as "level what key=value …", any other line unchanged, cut to MAX_LINE."""
    try:
        record = json.loads(line)
    except ValueError:
        return line[:MAX_LINE]
    if not isinstance(record, dict):
        return line[:MAX_LINE]
    level = str(record.get("level", record.get("severity", ""))).lower()
    message = next((str(record[key]) for key in _MESSAGE_KEYS if record.get(key)), "")
    rest = " ".join(
        f"{key}={_value(value)}"
        for key, value in record.items()
        if key not in _HIDDEN_KEYS and value not in (None, "")
    )
    fields = " ".join(
        part for part in (level if level not in ("", "info") else "", message, rest) if part
    )
    return fields[:MAX_LINE]
