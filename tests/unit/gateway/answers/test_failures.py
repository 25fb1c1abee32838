"""A failed response as an error: which field it names, by the client's API."""

from __future__ import annotations

from typing import Any

from gateway.answers import failures
from tests.support import cases


def failed(code: str, **more: str) -> dict[str, Any]:
    error = {"code": code, "message": "It cannot be served.", **more}
    return {"id": "resp_x", "status": "failed", "error": error}


@cases.each(
    ("response", "of_input", "param"),
    [
        (failed("invalid_prompt"), "messages", "messages"),
        (failed("invalid_value", param="input"), "prompt", "prompt"),
        (failed("invalid_value", param="dimensions"), "input", "dimensions"),
        (failed("context_length_exceeded", param="input[3]"), "input", "input[3]"),
        (failed("unsupported_parameter", param="text.format"), "messages", "response_format"),
        (failed("unsupported_parameter", param="text.format"), "input", "text.format"),
        (failed("unsupported_parameter", param="top_logprobs"), "prompt", "logprobs"),
        (failed("engine_refused"), "input", None),
        (failed("server_error"), "input", None),
    ],
)
def test_the_field_has_its_name_in_the_clients_api(
    response: dict[str, Any], of_input: str, param: str | None
) -> None:
    error = failures.error_of(response, of_input)
    assert error.param == param
    assert error.status == (500 if response["error"]["code"] == "server_error" else 400)
