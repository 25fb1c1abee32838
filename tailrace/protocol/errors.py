"""Every error that a client can get, and the two shapes it comes in (pure).

One constructor per case; no other module makes up a status, a code or a message. Wording and codes
follow OpenAI's, because clients recover on exact strings
(`previous_response_not_found`, `websocket_connection_limit_reached`).
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from tailrace.protocol import records, wait_times

INVALID_REQUEST: Final = "invalid_request_error"
SERVER_ERROR: Final = "server_error"

MAX_STREAM_IDS: Final = 32  # distinct named lanes on one socket
MAX_CONNECTION_MINUTES: Final = 60
MAX_WAIT_S: Final = 86_400.0  # the longest `Retry-After`
# The longest wait that SDKs may sleep through. Above it openai-python sleeps up to two minutes
# inside the call, and the JavaScript SDK ignores the wait and repeats the body at once.
MAX_SDK_WAIT_S: Final = 60.0

_MAX_QUOTED_CHARS: Final = 128  # how much of a client's own text a message repeats
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class ApiError(Exception):
    """An error as a client gets it.

    Fields are never assigned after construction. It is not a frozen dataclass: `contextlib` and
    `add_note` set attributes on exceptions in flight, and a frozen one would raise
    FrozenInstanceError instead of the error.
    """

    def __init__(
        self,
        status: int,
        type: str,  # the name the protocol gives it
        code: str | None,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(status, type, code, message, param)
        self.status: Final = status
        self.type: Final = type
        self.code: Final = code
        self.message: Final = message
        self.param: Final = param
        self.headers: Final = MappingProxyType(dict(headers))

    def __str__(self) -> str:
        return f"{self.status} {self.code or self.type}: {self.message}"


# ---- shapes


def http_body(error: ApiError) -> dict[str, Any]:
    """The body of an HTTP error. It always has all four keys, because SDKs read them unchecked."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def ws_event(
    error: ApiError, stream_id: str | None = None, sequence_number: int | None = None
) -> dict[str, Any]:
    """The error as a WebSocket event: nested, with `status`. `code` is a string also where HTTP
    has null, because the Open Responses schema requires one."""
    detail: dict[str, Any] = {
        "type": error.type,
        "code": error.code or error.type,
        "message": error.message,
        "param": error.param,
    }
    if error.headers:
        detail["headers"] = dict(error.headers)
    event: dict[str, Any] = {"type": "error", "status": error.status, "error": detail}
    if stream_id is not None:
        event["stream_id"] = stream_id
    if sequence_number is not None:
        event["sequence_number"] = sequence_number
    return event


# ---- 400: the request


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, INVALID_REQUEST, code, message, param)


def invalid_json() -> ApiError:
    return invalid_request("We could not parse the JSON body of your request.", code="invalid_json")


def missing_required_parameter(param: str) -> ApiError:
    return invalid_request(
        f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
    )


def unsupported_parameter(param: str, message: str | None = None) -> ApiError:
    return invalid_request(
        message or f"Unsupported parameter: '{param}'.", param, "unsupported_parameter"
    )


def unsupported_value(param: str, message: str) -> ApiError:
    return invalid_request(message, param, "unsupported_value")


def invalid_value(param: str, message: str) -> ApiError:
    return invalid_request(message, param, "invalid_value")


def invalid_type(param: str, expected: str) -> ApiError:
    return invalid_request(
        f"Invalid type for '{param}': expected {expected}.", param, "invalid_type"
    )


def out_of_range(param: str, minimum: float, maximum: float) -> ApiError:
    return invalid_request(
        f"Invalid '{param}': expected a value from {minimum} to {maximum}.", param, "invalid_value"
    )


def context_length_exceeded(limit: int, param: str | None = "input") -> ApiError:
    message = (
        f"Your input exceeds the context window of this model ({limit} tokens). Please "
        f"adjust your input and try again."
    )
    return invalid_request(message, param, "context_length_exceeded")


def record_too_large() -> ApiError:
    """The conversation does not fit into one record of the log."""
    message = (
        f"The request, with the conversation it continues, does not fit into one record of "
        f"{records.MAX_RECORD_BYTES >> 10} KiB. Shorten the input or begin a new conversation; "
        f"send images and files by POST /v1/files and their 'file_id'."
    )
    return invalid_request(message, "input", "context_length_exceeded")


def unknown_event(type: object) -> ApiError:  # the name the protocol gives it
    return invalid_request(f"Unknown event type {_quoted(type)}.", "type", "unknown_event")


def previous_response_not_found(response_id: str, param: str = "previous_response_id") -> ApiError:
    message = f"Previous response with id {_quoted(response_id)} not found."
    return invalid_request(message, param, "previous_response_not_found")


def conversation_not_found(name: str) -> ApiError:
    message = f"Conversation with id {_quoted(name)} not found."
    return ApiError(404, INVALID_REQUEST, "conversation_not_found", message)


def share_not_found() -> ApiError:
    """The link never existed, or it has ended; the message does not say which. It does not repeat
    the token, because the token would be a credential in every log that stores the message."""
    message = "There is no such link, or it has ended."
    return ApiError(404, INVALID_REQUEST, "share_not_found", message)


def conversation_item_not_found(item_id: str) -> ApiError:
    message = f"Item with id {_quoted(item_id)} not found in this conversation."
    return ApiError(404, INVALID_REQUEST, "item_not_found", message)


def conversation_locked(param: str, response_id: str) -> ApiError:
    """A turn is running. `param`: the field that names the predecessor of the new turn."""
    message = (
        f"Response {_quoted(response_id)} of this conversation is still in progress. Wait for its "
        "end, or ask with 'if_busy': 'queue' or 'interrupt'."
    )
    return invalid_request(message, param, "conversation_locked")


def mutually_exclusive(first: str, second: str) -> ApiError:
    message = f"Mutually exclusive parameters: '{first}' and '{second}'. Provide one of them."
    return invalid_request(message, second, "mutually_exclusive_parameters")


def item_not_found(item_id: str) -> ApiError:
    message = (
        f"Item with id {_quoted(item_id)} not found. Items are not kept when 'store' is false; "
        "send the item itself, or remove it from your input."
    )
    return ApiError(404, "invalid_request_error", "item_not_found", message, "input")


def file_not_found(file_id: str) -> ApiError:
    message = f"No such File object: {_printable(file_id)}"
    return ApiError(404, INVALID_REQUEST, "file_not_found", message, "id")


def file_unknown(file_id: str, param: str) -> ApiError:
    return invalid_value(param, f"File {_quoted(file_id)} was not found, or has expired.")


def vector_store_not_found(name: str) -> ApiError:
    message = f"Vector store with id {_quoted(name)} not found."
    return ApiError(404, INVALID_REQUEST, "vector_store_not_found", message, "vector_store_id")


def vector_store_expired(name: str) -> ApiError:
    message = f"Vector store with id {_quoted(name)} has expired."
    return invalid_request(message, "vector_store_id", "vector_store_expired")


def vector_store_file_not_found(name: str) -> ApiError:
    message = f"{_quoted(name)} was not found in this vector store."
    return ApiError(404, INVALID_REQUEST, "file_not_found", message, "file_id")


def vector_store_full(most: int, things: str) -> ApiError:
    message = f"There may be at most {most} {things}. Delete some first."
    return invalid_request(message, None, "vector_store_limit_reached")


def unsupported_file(param: str, supported: str) -> ApiError:
    message = f"This file has no text that can be searched. Supported are text files: {supported}."
    return invalid_request(message, param, "unsupported_file")


def invalid_encrypted_content(param: str) -> ApiError:
    message = f"Invalid '{param}': it was not made here for you, or was changed."
    return invalid_request(message, param, "invalid_encrypted_content")


def invalid_stream_id() -> ApiError:
    message = (
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only "
        "contain letters, numbers, underscores, hyphens, and periods."
    )
    return invalid_request(message, "stream_id", "invalid_stream_id")


def websocket_stream_limit_reached() -> ApiError:
    message = (
        "This WebSocket connection has reached its maximum number of distinct stream IDs "
        f"({MAX_STREAM_IDS}). Reuse an existing stream ID or open a new WebSocket connection."
    )
    return invalid_request(message, "stream_id", "websocket_stream_limit_reached")


def websocket_connection_limit_reached() -> ApiError:
    message = (
        f"Responses websocket connection limit reached ({MAX_CONNECTION_MINUTES} minutes). "
        "Create a new websocket connection to continue."
    )
    return invalid_request(message, code="websocket_connection_limit_reached")


# ---- 409: an idempotency key


def idempotency_key_reused() -> ApiError:
    """The key stands for another request of this principal. SDKs repeat a 409 unless the header
    says that it will stay one."""
    message = (
        "This idempotency key was used before with a different request. Repeat the request as it "
        "was, or use a new key."
    )
    return ApiError(
        409,
        INVALID_REQUEST,
        "idempotency_key_reused",
        message,
        "idempotency_key",
        headers={"x-should-retry": "false"},
    )


def file_deleted(file_id: str) -> ApiError:
    """The key stands for a file that its owner has deleted."""
    return ApiError(
        409,
        INVALID_REQUEST,
        "file_deleted",
        f"The file of this idempotency key was deleted: {_printable(file_id)}. Use a new key.",
        "idempotency_key",
        headers={"x-should-retry": "false"},
    )


# ---- 401, 403: the caller


def invalid_api_key() -> ApiError:
    """One message for every cause: details about a refused credential help only those who forge
    credentials."""
    message = "Incorrect or expired API key provided."
    return ApiError(
        401, INVALID_REQUEST, "invalid_api_key", message, headers={"www-authenticate": "Bearer"}
    )


def insufficient_scope(scope: str) -> ApiError:
    """The credential is a good one, and does not allow this."""
    return ApiError(
        403,
        INVALID_REQUEST,
        "insufficient_scope",
        f"This credential does not allow it: it lacks the scope '{scope}'.",
        headers={"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
    )


def session_token_missing() -> ApiError:
    """The cookie alone changes nothing: another site's page could have caused the request."""
    return ApiError(
        403,
        INVALID_REQUEST,
        "session_token_missing",
        "A request with a session's cookie needs the session's token in x-tailrace-session.",
    )


def forbidden_tenant() -> ApiError:
    return ApiError(
        403, INVALID_REQUEST, "forbidden_tenant", "This credential acts within its own tenant."
    )


def forbidden_origin() -> ApiError:
    return ApiError(403, INVALID_REQUEST, "forbidden_origin", "This origin is not allowed.")


# ---- 404 to 413: the resource


def model_not_found(model: str) -> ApiError:
    message = f"The model {_quoted(model)} does not exist or you do not have access to it."
    return ApiError(404, INVALID_REQUEST, "model_not_found", message, "model")


def response_not_found(response_id: str) -> ApiError:
    """Also for another principal's response, so that clients cannot learn which ids exist."""
    message = f"Response with id {_quoted(response_id)} not found."
    return ApiError(404, INVALID_REQUEST, "response_not_found", message, "response_id")


def history_lost(response_id: str) -> ApiError:
    """The log no longer reaches back to this id. This follows from the id alone, so it does not
    reveal whether such a response existed."""
    message = f"The history of response {_quoted(response_id)} is no longer available."
    return ApiError(410, INVALID_REQUEST, "history_lost", message, "response_id")


def not_found(path: str) -> ApiError:
    return ApiError(404, INVALID_REQUEST, "not_found", f"Invalid URL ({_printable(path)}).")


def not_offered(feature: str, alternative: str) -> ApiError:
    """A part of OpenAI's API that this server does not have. `alternative`: what it has instead."""
    message = f"{_printable(feature)} is not offered by this server. {alternative}"
    return ApiError(404, INVALID_REQUEST, "not_offered", message)


def completion_not_found(completion_id: str) -> ApiError:
    """Like `response_not_found`."""
    message = f"Chat completion with id {_quoted(completion_id)} not found."
    return ApiError(404, INVALID_REQUEST, "completion_not_found", message, "completion_id")


def completion_failed(completion_id: str, failed: Sequence[str]) -> ApiError:
    """It ended without an object, because these responses failed. SDKs do not try a 404 again."""
    message = (
        f"Chat completion {_quoted(completion_id)} has no answer, because "
        f"{', '.join(failed)} failed. The response says why."
    )
    return ApiError(404, INVALID_REQUEST, "completion_failed", message, "completion_id")


def completion_not_finished(completion_id: str) -> ApiError:
    """It has no object yet. SDKs try a 409 again."""
    message = (
        f"Chat completion {_quoted(completion_id)} is not finished yet. Follow its responses, or "
        "try again."
    )
    return ApiError(
        409,
        INVALID_REQUEST,
        "completion_not_finished",
        message,
        "completion_id",
        headers=_retry_after(1.0),
    )


def embeddings_cancelled() -> ApiError:
    """An idempotency key led to a request that was cancelled: its client had left. SDKs repeat a
    409 unless the header says that it will stay one."""
    return ApiError(
        409,
        INVALID_REQUEST,
        "cancelled",
        "These embeddings were cancelled. Ask for them again with a new idempotency key.",
        headers={"x-should-retry": "false"},
    )


def method_not_allowed(method: str, allow: str = "") -> ApiError:
    message = f"Not allowed to {_printable(method)} on this path."
    return ApiError(
        405,
        INVALID_REQUEST,
        "method_not_allowed",
        message,
        headers={"allow": allow} if allow else {},
    )


def request_timeout() -> ApiError:
    """The request's head did not come in time."""
    return ApiError(408, INVALID_REQUEST, "request_timeout", "The request did not arrive in time.")


def request_head_too_large(limit_bytes: int) -> ApiError:
    message = f"The head of the request is larger than the limit of {limit_bytes} bytes."
    return ApiError(431, INVALID_REQUEST, "request_head_too_large", message)


def payload_too_large(limit_bytes: int, without: str = "") -> ApiError:
    exclusion = f" without {without}" if without else ""
    message = f"The request{exclusion} is larger than the limit of {limit_bytes} bytes."
    return ApiError(413, INVALID_REQUEST, "payload_too_large", message)


def decoded_too_large(limit_bytes: int) -> ApiError:
    message = f"The decoded body of the request would be larger than {limit_bytes} bytes."
    return ApiError(413, INVALID_REQUEST, "payload_too_large", message)


def unsupported_encoding(encoding: str, accepted: str) -> ApiError:
    """The body is compressed in a way that is not decoded. `accepted`: those that are."""
    return ApiError(
        415,
        INVALID_REQUEST,
        "unsupported_encoding",
        f"Content-Encoding {_quoted(encoding)} is not supported: one of {accepted}.",
        headers={"accept-encoding": accepted},
    )


# ---- 429, 5xx: the service


def rate_limit_exceeded(
    retry_after_s: float,
    kind: Literal["requests", "tokens"] = "requests",
    headers: Mapping[str, str] = _NO_HEADERS,
) -> ApiError:
    """The caller exceeded its rate. `headers` may add the `x-ratelimit-*` family."""
    message = f"Rate limit reached for {kind}. Please try again in {_wait(retry_after_s):.1f}s."
    return ApiError(
        429,
        kind,
        "rate_limit_exceeded",
        message,
        headers={**headers, **_retry_after(retry_after_s)},
    )


def overloaded(retry_after_s: float) -> ApiError:
    """All callers together exceed the capacity. Nothing was queued, because its deadline would
    pass."""
    message = f"The service is at its capacity. Please try again in {_wait(retry_after_s):.1f}s."
    return ApiError(
        429, "requests", "rate_limit_exceeded", message, headers=_retry_after(retry_after_s)
    )


def deadline_not_met(wait_s: float, deadline_s: float, fraction: float = 0.0) -> ApiError:
    """A request would start after its deadline, or too close to it. Nothing was queued.
    `fraction`: as of `wait_times.with_jitter`."""
    when = "after" if wait_s > deadline_s else "too close to"
    start_s = wait_times.rounded_up(_wait(wait_s))
    message = (
        f"This request would start in about {start_s:g}s, {when} its deadline of "
        f"{deadline_s:g}s. Please try again in {start_s:g}s."
    )
    headers = _retry_after(wait_times.with_jitter(start_s, fraction))
    return ApiError(429, "requests", "rate_limit_exceeded", message, headers=headers)


def too_many_feeds(most: int, retry_after_s: float) -> ApiError:
    """The caller has as many feeds open here as it may."""
    message = f"You have {most} feeds open here, which is the most. Please close some of them."
    return ApiError(
        429, "requests", "rate_limit_exceeded", message, headers=_retry_after(retry_after_s)
    )


def too_many_look_ups(retry_after_s: float) -> ApiError:
    """The caller looks up more responses at once than one principal may."""
    message = (
        "Too many of your responses are being looked up at once. "
        f"Please try again in {_wait(retry_after_s):.1f}s."
    )
    return ApiError(
        429, "requests", "rate_limit_exceeded", message, headers=_retry_after(retry_after_s)
    )


def too_much_memory(retry_after_s: float) -> ApiError:
    """The caller's unfinished requests, and the responses that it reads again, take too much
    memory."""
    message = (
        "Your unfinished requests, open conversations and responses that you read again take too "
        "much memory. "
        f"Please try again in {_wait(retry_after_s):.1f}s."
    )
    return ApiError(
        429, "requests", "rate_limit_exceeded", message, headers=_retry_after(retry_after_s)
    )


def too_many_files(most: int, most_bytes: int, retry_after_s: float) -> ApiError:
    return ApiError(
        429,
        "requests",
        "too_many_files",
        (
            f"You have uploaded as much as one may: {most} files, or {most_bytes} bytes together. "
            "Files count until they expire, deleted ones too."
        ),
        headers=_retry_after(retry_after_s),
    )


def too_many_connections(retry_after_s: float) -> ApiError:
    """One client, or its address, holds as many connections as it may."""
    return ApiError(
        429,
        "requests",
        "too_many_connections",
        "You hold too many connections. Close some and try again.",
        headers=_retry_after(retry_after_s),
    )


def too_many_refusals(retry_after_s: float) -> ApiError:
    """Too many credentials from this address were refused; this one was not checked."""
    return ApiError(
        429,
        "requests",
        "too_many_refused_credentials",
        "Too many credentials from your address were refused. "
        f"Please try again in {_wait(retry_after_s):.1f}s.",
        headers=_retry_after(retry_after_s),
    )


def server_error() -> ApiError:
    message = "The server had an error while processing your request. Sorry about that!"
    return ApiError(500, SERVER_ERROR, SERVER_ERROR, message)


def response_failed(code: str | None, message: str) -> ApiError:
    """A response that failed, where the API has no object for one."""
    return ApiError(500, SERVER_ERROR, code, message)


def wrong_request(
    code: str, message: str, param: str | None, headers: Mapping[str, str] = _NO_HEADERS
) -> ApiError:
    """A request that its model cannot serve: a worker found out, or a gateway that can count like
    one. Nothing was generated."""
    return ApiError(400, INVALID_REQUEST, code, message, param, headers)


def unavailable(
    message: str = "The service is temporarily unavailable.", retry_after_s: float = 1.0
) -> ApiError:
    """A part is unreachable (the broker, Redis for a ticket, every engine), or this process
    drains."""
    return ApiError(
        503, SERVER_ERROR, "service_unavailable", message, headers=_retry_after(retry_after_s)
    )


def no_pool(model: str, states: Sequence[tuple[str, str]], retry_after_s: float) -> ApiError:
    """Neither the pool of the model nor one of its `fallback` can answer. `states`: each pool
    and the reason; an empty reason: the pool does not serve this model, or no such request."""
    reasons = ", ".join(f"{pool}: {reason or 'not able'}" for pool, reason in states)
    return unavailable(
        f"No pool can answer for the model {_quoted(model)} right now ({reasons}). "
        f"Please try again in {_wait(retry_after_s):.1f}s.",
        retry_after_s,
    )


def _wait(seconds: float) -> float:
    """A waiting time for a client, within bounds. One second if it could not be computed."""
    return 1.0 if math.isnan(seconds) else min(max(0.0, seconds), MAX_WAIT_S)


def outcome_unknown(response_id: str) -> ApiError:
    """The log did not confirm an append, and the request is being withdrawn. Every other 503 of a
    create means that nothing was written and nothing will be."""
    message = (
        "The log did not confirm this request, so it is not known whether it was taken. It is "
        f"being withdrawn: {_quoted(response_id)} ends as cancelled, or does not exist. Look it "
        "up, or send the request again with the same idempotency key."
    )
    return ApiError(
        503,
        SERVER_ERROR,
        "outcome_unknown",
        message,
        headers={**_retry_after(1.0), "x-tailrace-response-id": response_id},
    )


def _retry_after(seconds: float) -> dict[str, str]:
    """`Retry-After` in whole seconds, at least 1, and in exact milliseconds, which SDKs prefer.
    With a long wait, SDKs are told to give the error to their caller instead of a retry."""
    seconds = _wait(seconds)
    headers = {
        "retry-after": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(seconds * 1000))),
    }
    return {**headers, "x-should-retry": "false"} if seconds > MAX_SDK_WAIT_S else headers


def _printable(value: object) -> str:
    """A client's text for a message: bounded, and without control characters, which would break a
    terminal or a log line."""
    text = value if isinstance(value, str) else repr(value)
    return "".join(char if char.isprintable() else "?" for char in text[:_MAX_QUOTED_CHARS])


def _quoted(value: object) -> str:
    return f"'{_printable(value)}'"
