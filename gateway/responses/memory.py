"""A connection's memory of a response that it may continue (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponseMemory:
    """A lane's memory of its last response: enough to continue it, also with `store: false`.
    `state`: `context.pack` of the messages with its answer, without its instructions."""

    rid: str
    state: bytes
