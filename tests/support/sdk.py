"""OpenAI's client on a gateway."""

from __future__ import annotations

from typing import Any

import openai

from tests.support import gateway_process as gp


def of(gateway: gp.Gateway, subject: str = "alice", **options: Any) -> openai.AsyncOpenAI:
    """As a user with a credential. It repeats nothing by itself. `options`: others of its own."""
    given = {"max_retries": 0, "timeout": 60} | options
    return openai.AsyncOpenAI(base_url=gateway.api, api_key=gateway.keys.token(subject), **given)
