"""Bodies of both APIs, parsed with everything offered; and what is refused of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.parsing import chat_api, command, responses_api
from tailrace.protocol import errors
from tailrace.settings.catalog import Catalog
from tailrace.settings.shapes import Pool

POOLS = Catalog((Pool("default", ("small",), max_model_len=8192, default_output_tokens=40),))
QUESTION = [{"role": "user", "content": "hi"}]


def responses(body: dict[str, Any], *, websocket: bool = False) -> command.Create:
    body = {"input": "hi", **body}
    return responses_api.parse(body, POOLS, websocket=websocket)


def chat(body: dict[str, Any]) -> command.Create:
    return chat_api.parse({"messages": QUESTION, **body}, POOLS)


def refused_responses(body: dict[str, Any]) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as error:
        responses(body)
    assert error.value.status == 400
    return error.value


def refused_chat(body: dict[str, Any]) -> errors.ApiError:
    with pytest.raises(errors.ApiError) as error:
        chat(body)
    assert error.value.status == 400
    return error.value


def code_and_param(error: errors.ApiError) -> tuple[str | None, str | None]:
    return error.param, error.code
