"""What a connection keeps of a response that it may continue (pure)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponseMemory:
    """What a lane keeps of its last response: enough to continue it, also with `store: false`.
    `state` is `context.pack` of the messages with its answer, without its instructions."""

    rid: str
    state: bytes
