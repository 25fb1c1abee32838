"""What an operator offers and allows: model deployments and the limits on callers (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

DEFAULT_OUTPUT_TOKENS: Final = 1024


@dataclass(frozen=True, slots=True)
class Pool:
    """One model deployment. `max_model_len` bounds prompt and answer together, in tokens."""

    name: str
    models: tuple[str, ...]
    max_model_len: int
    default_output_tokens: int
    default_temperature: float = 1.0
    default_top_p: float = 1.0


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one principal, and all of them together, may ask.

    `requests_rate` and `tokens_rate` are per second and principal, counted in Redis for all
    gateways together; 0 turns one off. The others count in this process.
    """

    requests_rate: float = 50.0
    requests_burst: float = 500.0
    tokens_rate: float = 200_000.0
    tokens_burst: float = 4_000_000.0
    responses_per_principal: int = 512
    responses: int = 4096
    sockets_per_principal: int = 1024
    sockets: int = 8192
