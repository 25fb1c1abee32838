"""A failed response as an error (pure).

A worker may find that a request is invalid after the gateway has accepted it: the prompt is too
long, an image cannot be decoded. The client must change the request, and SDKs must not retry it. So
the status is 400, unless a status was already sent.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace.protocol import errors

# Codes of a failed response that name a fault of the request. The worker's engines set them
# (`Refused`).
_OF_INPUT: Final = frozenset(
    {"context_length_exceeded", "invalid_prompt", "invalid_image", "invalid_value"}
)
_OF_REQUEST: Final = _OF_INPUT | {
    *("unsupported_parameter", "unsupported_value"),
    "engine_refused",  # by the server of an engine, with 400 and its own words
}
# Fields of the Responses API that have another name in Chat Completions and Completions.
_IN_COMPLETIONS: Final = {
    "text.format": "response_format",
    "reasoning.effort": "reasoning_effort",
    "top_logprobs": "logprobs",
}


def error_of(response: dict[str, Any], param: str) -> errors.ApiError:
    """The error for a failed response. `param`: the field that holds the input."""
    return wrong_request(response, param) or errors.response_failed(**_failure(response))


def wrong_request(response: dict[str, Any], param: str) -> errors.ApiError | None:
    """The error for a response that failed because of its request; None for any other one."""
    failure = _failure(response)
    if response["status"] != "failed" or failure["code"] not in _OF_REQUEST:
        return None
    field = response["error"].get("param") or ("input" if failure["code"] in _OF_INPUT else None)
    headers = {"x-tailrace-response-id": response["id"]}
    return errors.wrong_request(**failure, param=_name(field, param), headers=headers)


def _failure(response: dict[str, Any]) -> dict[str, Any]:
    error = response.get("error") or {}
    return {"code": error.get("code"), "message": error.get("message") or "The response failed."}


def _name(field: str | None, of_input: str) -> str | None:
    """The name in the client's API of a field of the Responses API."""
    if field is None or field == "input":
        return field and of_input
    return field if of_input == "input" else _IN_COMPLETIONS.get(field, field)
