"""Asks a service whether it is ready, at its /ready."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of one /ready.

    Attributes:
        ready: whether it may get work.
        state: its own word for its state; empty if there was no answer.
        detail: the cause of a wait or a failure; empty if it reports none.
        features: of a worker's engine, beyond plain text; None if it is not a worker, or does not
            report them.
        parsers: names of the parsers that turn the engine's answers into items.
    """

    ready: bool = False
    state: str = ""
    detail: str = ""
    features: tuple[str, ...] | None = None
    parsers: tuple[str, ...] = ()


def query(url: str) -> Readiness:
    """Ask once. Never raises: no answer means "not ready"."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        body = answer.read(65_536)
    except (OSError, http.client.HTTPException):
        return Readiness()
    finally:
        connection.close()
    return parse(answer.status, body)


def parse(status: int, body: bytes) -> Readiness:
    """Read `{"ready": bool, "state": "...", "detail": "...", "features": [...], "parsers": [...]}`.
    Of any other body only the status counts."""
    try:
        fields: Any = json.loads(body)
    except ValueError:
        fields = {}
    if not isinstance(fields, dict):
        fields = {}
    features, parsers = fields.get("features"), fields.get("parsers")
    return Readiness(
        ready=status == 200,
        state=str(fields.get("state") or ""),
        detail=str(fields.get("detail") or ""),
        features=tuple(map(str, features)) if isinstance(features, list) else None,
        parsers=tuple(map(str, parsers)) if isinstance(parsers, list) else (),
    )
