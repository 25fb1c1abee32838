import contextlib
import json
from collections.abc import Iterator

import pytest

from tailrace.protocol import errors
from tests.support import cases

EVERY_ERROR = [
    (errors.invalid_request("No.", "input", "bad"), 400, "bad", "input"),
    (errors.invalid_json(), 400, "invalid_json", None),
    (errors.missing_required_parameter("model"), 400, "missing_required_parameter", "model"),
    (errors.unsupported_parameter("background"), 400, "unsupported_parameter", "background"),
    (errors.unsupported_value("input", "Only text."), 400, "unsupported_value", "input"),
    (errors.invalid_value("n", "Too many."), 400, "invalid_value", "n"),
    (errors.invalid_type("temperature", "a number"), 400, "invalid_type", "temperature"),
    (errors.out_of_range("temperature", 0, 2), 400, "invalid_value", "temperature"),
    (errors.context_length_exceeded(8192), 400, "context_length_exceeded", "input"),
    (errors.record_too_large(), 400, "context_length_exceeded", "input"),
    (errors.unknown_event("response.dance"), 400, "unknown_event", "type"),
    (
        errors.previous_response_not_found("resp_1"),
        400,
        "previous_response_not_found",
        "previous_response_id",
    ),
    (errors.invalid_stream_id(), 400, "invalid_stream_id", "stream_id"),
    (errors.websocket_stream_limit_reached(), 400, "websocket_stream_limit_reached", "stream_id"),
    (errors.websocket_connection_limit_reached(), 400, "websocket_connection_limit_reached", None),
    (errors.invalid_api_key(), 401, "invalid_api_key", None),
    (errors.insufficient_scope("create"), 403, "insufficient_scope", None),
    (errors.session_token_missing(), 403, "session_token_missing", None),
    (errors.forbidden_tenant(), 403, "forbidden_tenant", None),
    (errors.forbidden_origin(), 403, "forbidden_origin", None),
    (errors.model_not_found("m"), 404, "model_not_found", "model"),
    (errors.response_not_found("resp_1"), 404, "response_not_found", "response_id"),
    (errors.item_not_found("rs_1"), 404, "item_not_found", "input"),
    (errors.conversation_not_found("conv_1"), 404, "conversation_not_found", None),
    (errors.share_not_found(), 404, "share_not_found", None),
    (errors.conversation_item_not_found("msg_1"), 404, "item_not_found", None),
    (
        errors.conversation_locked("conversation", "resp_1"),
        400,
        "conversation_locked",
        "conversation",
    ),
    (errors.mutually_exclusive("a", "b"), 400, "mutually_exclusive_parameters", "b"),
    (
        errors.invalid_encrypted_content("input[0].encrypted_content"),
        400,
        "invalid_encrypted_content",
        "input[0].encrypted_content",
    ),
    (errors.completion_not_found("c"), 404, "completion_not_found", "completion_id"),
    (errors.completion_failed("c", ["resp_1"]), 404, "completion_failed", "completion_id"),
    (errors.not_offered("/v1/x", "Use y."), 404, "not_offered", None),
    (errors.completion_not_finished("c"), 409, "completion_not_finished", "completion_id"),
    (errors.embeddings_cancelled(), 409, "cancelled", None),
    (errors.idempotency_key_reused(), 409, "idempotency_key_reused", "idempotency_key"),
    (errors.file_deleted("file-1"), 409, "file_deleted", "idempotency_key"),
    (errors.history_lost("resp_1"), 410, "history_lost", "response_id"),
    (errors.not_found("/v2/x"), 404, "not_found", None),
    (errors.method_not_allowed("PUT", "GET, POST"), 405, "method_not_allowed", None),
    (errors.payload_too_large(131072), 413, "payload_too_large", None),
    (errors.decoded_too_large(131072), 413, "payload_too_large", None),
    (errors.unsupported_encoding("lzw", "gzip"), 415, "unsupported_encoding", None),
    (errors.rate_limit_exceeded(2.5), 429, "rate_limit_exceeded", None),
    (errors.overloaded(2.5), 429, "rate_limit_exceeded", None),
    (errors.deadline_not_met(12.0, 9.5), 429, "rate_limit_exceeded", None),
    (errors.no_pool("m", [("large", "failed")], 2.5), 503, "service_unavailable", None),
    (errors.too_many_look_ups(1.0), 429, "rate_limit_exceeded", None),
    (errors.too_many_feeds(32, 1.0), 429, "rate_limit_exceeded", None),
    (errors.too_much_memory(1.0), 429, "rate_limit_exceeded", None),
    (errors.too_many_connections(1.0), 429, "too_many_connections", None),
    (errors.too_many_files(2, 9, 1.0), 429, "too_many_files", None),
    (errors.file_not_found("file-x"), 404, "file_not_found", "id"),
    (errors.vector_store_not_found("vs_1"), 404, "vector_store_not_found", "vector_store_id"),
    (errors.vector_store_expired("vs_1"), 400, "vector_store_expired", "vector_store_id"),
    (errors.vector_store_file_not_found("file-x"), 404, "file_not_found", "file_id"),
    (errors.vector_store_full(5, "x"), 400, "vector_store_limit_reached", None),
    (errors.unsupported_file("file_id", ".txt"), 400, "unsupported_file", "file_id"),
    (errors.file_unknown("file-x", "input[0]"), 400, "invalid_value", "input[0]"),
    (errors.too_many_refusals(1.0), 429, "too_many_refused_credentials", None),
    (errors.request_timeout(), 408, "request_timeout", None),
    (errors.request_head_too_large(32768), 431, "request_head_too_large", None),
    (errors.server_error(), 500, "server_error", None),
    (errors.response_failed("x", "y"), 500, "x", None),
    (errors.wrong_request("invalid_prompt", "y", "input"), 400, "invalid_prompt", "input"),
    (errors.unavailable(), 503, "service_unavailable", None),
    (errors.outcome_unknown("resp_x"), 503, "outcome_unknown", None),
]
each_error = pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    EVERY_ERROR,
    ids=[f"{error.code}-{n}" for n, (error, *_) in enumerate(EVERY_ERROR)],
)


@each_error
def test_http_body_has_all_four_keys_and_nothing_else(
    error: errors.ApiError, status: int, code: str, param: str | None
) -> None:
    body = errors.http_body(error)
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (error.status, body["error"]["code"], body["error"]["param"]) == (status, code, param)
    assert body["error"]["message"]
    json.dumps(body)


@each_error
def test_ws_event_is_nested_with_status_and_a_string_code(
    error: errors.ApiError, status: int, code: str, param: str | None
) -> None:
    event = errors.ws_event(error)
    assert event["type"] == "error"
    assert event["status"] == status
    assert (event["error"]["code"], event["error"]["param"]) == (code, param)
    assert "stream_id" not in event
    assert "sequence_number" not in event
    json.dumps(event)


def test_every_constructor_is_in_the_table_above() -> None:
    shapes = {"http_body", "ws_event"}
    constructors = {
        name
        for name, value in vars(errors).items()
        if callable(value) and value.__module__ == errors.__name__ and not isinstance(value, type)
    }
    public = {name for name in constructors if not name.startswith("_")} - shapes
    assert len(public) == len(EVERY_ERROR)


def test_ws_event_echoes_lane_and_sequence_number_zero() -> None:
    event = errors.ws_event(errors.invalid_stream_id(), stream_id="main", sequence_number=0)
    assert (event["stream_id"], event["sequence_number"]) == ("main", 0)


def test_an_error_without_code_still_gives_sockets_a_string_code() -> None:
    error = errors.invalid_request("No.")
    assert errors.http_body(error)["error"]["code"] is None
    assert errors.ws_event(error)["error"]["code"] == "invalid_request_error"


@cases.each(
    ("seconds", "whole", "milliseconds"),
    [(0, "1", "1"), (0.25, "1", "250"), (1.0, "1", "1000"), (2.001, "3", "2001")],
)
def test_retry_after_is_a_whole_second_from_one_and_the_exact_milliseconds(
    seconds: float, whole: str, milliseconds: str
) -> None:
    error = errors.rate_limit_exceeded(seconds, "tokens", {"x-ratelimit-limit-tokens": "10"})
    assert dict(error.headers) == {
        "x-ratelimit-limit-tokens": "10",
        "retry-after": whole,
        "retry-after-ms": milliseconds,
    }
    assert error.type == "tokens"
    assert errors.ws_event(error)["error"]["headers"] == dict(error.headers)


@cases.each(
    ("seconds", "is_final"),
    [(59.9, False), (60.0, False), (60.001, True), (600.0, True), (10**9, True)],
)
def test_a_wait_that_sdks_do_not_sleep_through_tells_them_not_to_retry(
    seconds: float, is_final: bool
) -> None:
    """openai-python slept up to two minutes inside a call, and the JavaScript SDK ignored a wait
    above one and repeated the body after half a second."""
    for error in (
        errors.rate_limit_exceeded(seconds),
        errors.too_many_files(2, 100, seconds),
        errors.unavailable(retry_after_s=seconds),
    ):
        assert error.headers.get("x-should-retry") == ("false" if is_final else None)
        assert int(error.headers["retry-after"]) >= min(seconds, errors.MAX_WAIT_S)
        assert errors.ws_event(error)["error"]["headers"] == dict(error.headers)


def test_messages_clients_recover_on_are_exact() -> None:
    assert (
        errors.previous_response_not_found("resp_abc").message
        == "Previous response with id 'resp_abc' not found."
    )
    assert errors.websocket_connection_limit_reached().message.startswith(
        "Responses websocket connection limit reached (60 minutes)."
    )


def test_text_of_a_client_is_bounded_and_printable_in_a_message() -> None:
    message = errors.model_not_found("a\x1b[31m\n" + "x" * 10_000).message
    assert len(message) < 300
    assert message.isprintable()


def test_a_value_that_is_no_text_can_be_named() -> None:
    assert "{'a': 1}" in errors.unknown_event({"a": 1}).message


def test_headers_cannot_change_after_construction() -> None:
    given = {"a": "b"}
    error = errors.ApiError(400, "t", None, "m", headers=given)
    given["a"] = "c"
    assert error.headers == {"a": "b"}
    with pytest.raises(TypeError):
        error.headers["a"] = "c"  # type: ignore[index]


def test_it_survives_a_context_manager_which_assigns_the_traceback() -> None:
    @contextlib.contextmanager
    def passing() -> Iterator[None]:
        yield

    with pytest.raises(errors.ApiError, match="404 model_not_found"), passing():
        raise errors.model_not_found("m")


def test_a_deadline_that_is_not_met_says_a_round_wait_and_spreads_who_comes_back() -> None:
    found = [errors.deadline_not_met(12.3, 9.5, drawn) for drawn in (0.0, 0.5, 1.0)]
    assert found[0].message == (
        "This request would start in about 15s, after its deadline of 9.5s. "
        "Please try again in 15s."
    )
    assert {each.message for each in found} == {found[0].message}
    assert [dict(each.headers) for each in found] == [
        {"retry-after": "15", "retry-after-ms": "15000"},
        {"retry-after": "14", "retry-after-ms": "13500"},
        {"retry-after": "12", "retry-after-ms": "12000"},
    ]
