"""From a client's body to one checked command (pure).

Two dialects, Responses and Chat Completions, end in the same `Create`. Unknown fields are ignored,
because clients send many. Known fields that this product cannot honour are refused by name, because
an answer that silently ignored them would be wrong.

Scalar fields are declared with their bounds as structs. Input items and other unions are checked by
hand, because their errors name the item.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, inspect

from tailrace.protocol import errors, records, topics
from tailrace.settings.shapes import Pool

MAX_ITEMS: Final = 512
MAX_PARTS: Final = 64
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512
MAX_STOPS: Final = 4
MAX_STOP_CHARS: Final = 64
MAX_LOGIT_BIAS: Final = 300
MAX_LABEL_CHARS: Final = 512  # user, safety_identifier, prompt_cache_key, idempotency key
# No text is denser with a real tokenizer. The engine counts exactly; this bound only keeps absurd
# inputs out of the log.
CHARS_PER_TOKEN: Final = 16

_ROLES: Final = {
    "user": "user",
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})

Body = Mapping[str, Any]
T = TypeVar("T")

# ---- scalar fields of the bodies; null means absent

_Label = Annotated[str, Meta(max_length=MAX_LABEL_CHARS)]
_Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class _SharedFields(msgspec.Struct, frozen=True):
    """What both dialects spell alike."""

    store: bool | None = None
    service_tier: str | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    user: _Label | None = None
    safety_identifier: _Label | None = None
    prompt_cache_key: _Label | None = None


class _ResponseFields(_SharedFields, frozen=True):
    """What a Responses body has on either transport. The pool bounds two of them further."""

    previous_response_id: _Label | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | None = None


class ResponsesBody(_ResponseFields, frozen=True):
    """`POST /v1/responses`."""

    background: bool | None = None
    stream: bool | None = None


class CreateEvent(_ResponseFields, frozen=True):
    """`response.create` on a WebSocket."""

    generate: bool | None = None
    idempotency_key: _Label | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options` of Chat Completions."""

    include_usage: bool | None = None


class ChatBody(_SharedFields, frozen=True):
    """`POST /v1/chat/completions`. The pool bounds both numbers of tokens further."""

    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


Fields = TypeVar("Fields", bound=msgspec.Struct)


def _fields(body: Body, kind: type[Fields]) -> Fields:
    """The scalar fields of a body.

    Raises:
        errors.ApiError: for the first wrong field, in the order of `kind`.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _wrong_field(body, kind) or error from error


def _wrong_field(body: Body, kind: type[msgspec.Struct]) -> errors.ApiError | None:
    """The refusal of the first wrong field."""
    for name, rule in _rules(kind).items():
        value = body.get(name)
        if value is not None and (refused := _refusal(name, value, rule)) is not None:
            return refused
    return None


@functools.cache  # inspecting a struct takes half a millisecond
def _rules(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """What each field of a struct must be, unless it is null."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    rules = {}
    for field in found.fields:
        assert isinstance(field.type, inspect.UnionType)
        (rules[field.encode_name],) = (
            part for part in field.type.types if not isinstance(part, inspect.NoneType)
        )
    return rules


def _refusal(name: str, value: Any, rule: inspect.Type) -> errors.ApiError | None:
    """Why `value` is no `rule`, in the words of the protocol; None if it is one."""
    match rule:
        case inspect.BoolType():
            return None if type(value) is bool else errors.invalid_type(name, "a boolean")
        case inspect.StrType(max_length=most):
            if not isinstance(value, str):
                return errors.invalid_type(name, "a string")
            return _too_long(name, most) if most is not None and len(value) > most else None
        case inspect.IntType(ge=low, le=high):
            if type(value) is not int:
                return errors.invalid_type(name, "an integer")
            if low is not None and high is not None and not low <= value <= high:
                return errors.invalid_value(name, f"Invalid '{name}': expected a 64-bit integer.")
        case inspect.FloatType(ge=low, gt=above, le=high):
            if type(value) not in (int, float):
                return errors.invalid_type(name, "a number")
            if above is not None and value == above:
                return errors.invalid_value(
                    name,
                    f"Invalid '{name}': expected a value above {above:g} and at most {high:g}.",
                )
            lowest, most_ = (low if low is not None else above or 0.0), high or 0.0
            if not lowest <= value <= most_:
                return errors.out_of_range(name, lowest, most_)
        case inspect.StructType(cls=kind):
            if not isinstance(value, dict):
                return errors.invalid_type(name, "an object")
            return _wrong_field(value, kind)
    return None


def _too_long(name: str, most: int) -> errors.ApiError:
    return errors.invalid_value(name, f"Invalid '{name}': expected at most {most} characters.")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


# ---- the checked command


@dataclass(frozen=True, slots=True)
class Create:
    """A checked request for one response.

    Attributes:
        input: this turn as chat messages `{"role", "content"}`, without instructions.
        items: the same as the client is shown it (`input_items`).
        max_output_tokens: as asked, for the echo; the effective bound is in `sampling`.
        previous: the id this one continues; not yet resolved.
        usage_in_stream: Chat Completions' `include_usage`.
        body_digest: of what the client sent; None without an idempotency key.
    """

    model: str
    pool: str
    priority: topics.PriorityClass
    input: list[dict[str, Any]]
    items: list[dict[str, Any]]
    sampling: records.Sampling
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    generate: bool = True
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool = True
    idempotency_key: str | None = None
    usage_in_stream: bool = False
    body_digest: str | None = None

    @property
    def characters(self) -> int:
        """Length of this turn's text, for admission."""
        return sum(len(m["content"]) for m in self.input) + len(self.instructions or "")


def decode(data: str | bytes) -> dict[str, Any]:
    """One JSON object.

    Raises:
        errors.ApiError: not JSON (also: lone surrogates, numbers beyond a double, nesting beyond
            the decoder's bound), or not an object.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise errors.invalid_json() from error
    if not isinstance(body, dict):
        raise errors.invalid_request("The request must be a JSON object.", code="invalid_type")
    return body


class EventHead(msgspec.Struct, frozen=True):
    """What of a client event decides its way. The rest is skipped, not decoded."""

    type: Any = None
    stream_id: Any = None
    response_id: Any = None


_decode_head = msgspec.json.Decoder(EventHead).decode


def event_head(data: bytes) -> EventHead:
    """The head of one client event. Raises like `decode`."""
    try:
        return _decode_head(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        decode(data)  # says why
        raise errors.invalid_json() from error


# ---- Responses


def of_responses(body: Body, pools: Sequence[Pool], *, websocket: bool = False) -> Create:
    """A body of `POST /v1/responses`, or a `response.create` event.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = _pool(body, pools)
    _refuse_unsupported(body, websocket=websocket)
    turn: ResponsesBody | CreateEvent
    background, stream, generate, key = False, True, True, None
    if websocket:
        turn = event = _fields(body, CreateEvent)
        generate, key = _or(event.generate, True), event.idempotency_key
    else:
        turn = request = _fields(body, ResponsesBody)
        background, stream = _or(request.background, False), _or(request.stream, False)
    if background and turn.store is False:
        raise errors.invalid_value(
            "background", "Background can only be used when 'store' is true."
        )
    instructions = turn.instructions
    if instructions is not None and len(instructions) > pool.max_model_len * CHARS_PER_TOKEN:
        raise _too_long("instructions", pool.max_model_len * CHARS_PER_TOKEN)
    previous = turn.previous_response_id
    messages = _input(body, pool, required=generate and previous is None)
    asked = _max_tokens(turn.max_output_tokens, "max_output_tokens", pool)
    return dataclasses.replace(
        _create(body, turn, pool, model, messages, asked),
        instructions=instructions,
        previous=previous,
        background=background,
        stream=stream,
        generate=generate,
        parallel_tool_calls=_or(turn.parallel_tool_calls, True),
        idempotency_key=key,
        body_digest=body_digest(body) if key is not None else None,
    )


def _refuse_unsupported(body: Body, *, websocket: bool) -> None:
    _refuse_tools(body)
    for name in ("conversation", "prompt"):
        if body.get(name) is not None:
            raise errors.unsupported_parameter(name)
    if websocket and body.get("background"):
        raise errors.unsupported_parameter(
            "background", "Background responses are not supported over WebSocket."
        )
    form = _mapping(body, "text").get("format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        raise errors.unsupported_value("text.format", "Only the format 'text' is supported.")
    if body.get("truncation") not in (None, "disabled"):
        raise errors.unsupported_value("truncation", "Only the truncation 'disabled' is supported.")
    if body.get("top_logprobs"):
        raise errors.unsupported_parameter("top_logprobs")
    include = body.get("include")
    if include is not None and not isinstance(include, list):
        raise errors.invalid_type("include", "an array of strings")
    if include and any(isinstance(name, str) and name.endswith("logprobs") for name in include):
        raise errors.unsupported_value("include", "Log probabilities are not supported.")


def _input(body: Body, pool: Pool, *, required: bool) -> list[dict[str, Any]]:
    value = body.get("input")
    if value is None or value == []:
        if required:
            raise errors.missing_required_parameter("input")
        return []
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list):
        raise errors.invalid_type("input", "a string or an array of items")
    if len(items) > MAX_ITEMS:
        raise errors.invalid_value("input", f"Invalid 'input': expected at most {MAX_ITEMS} items.")
    return _within(
        pool, [_message(item, f"input[{i}]", ("message",)) for i, item in enumerate(items)], "input"
    )


def _item(message: dict[str, Any]) -> dict[str, Any]:
    kind = "output_text" if message["role"] == "assistant" else "input_text"
    part: dict[str, Any] = {"type": kind, "text": message["content"]}
    if kind == "output_text":
        part["annotations"] = []
    return {"type": "message", "role": message["role"], "status": "completed", "content": [part]}


# ---- Chat Completions


def of_chat(body: Body, pools: Sequence[Pool]) -> Create:
    """A body of `POST /v1/chat/completions`; raises like `of_responses`."""
    pool, model = _pool(body, pools)
    _refuse_unsupported_chat(body)
    turn = _fields(body, ChatBody)
    value = body.get("messages")
    if value is None or value == []:
        raise errors.missing_required_parameter("messages")
    if not isinstance(value, list):
        raise errors.invalid_type("messages", "an array of messages")
    if len(value) > MAX_ITEMS:
        raise errors.invalid_value(
            "messages", f"Invalid 'messages': expected at most {MAX_ITEMS} messages."
        )
    messages = _within(
        pool, [_message(item, f"messages[{i}]", ()) for i, item in enumerate(value)], "messages"
    )
    asked = _max_tokens(turn.max_completion_tokens, "max_completion_tokens", pool)
    asked = asked or _max_tokens(turn.max_tokens, "max_tokens", pool)
    options = turn.stream_options
    return dataclasses.replace(
        _create(body, turn, pool, model, messages, asked),
        stream=_or(turn.stream, False),
        usage_in_stream=options is not None and _or(options.include_usage, False),
    )


def _refuse_unsupported_chat(body: Body) -> None:
    _refuse_tools(body)
    if body.get("n") not in (None, 1):
        raise errors.unsupported_value("n", "Only n=1 is supported.")
    for name in (
        "functions",
        "logprobs",
        "top_logprobs",
        "audio",
        "prediction",
        "web_search_options",
    ):
        if body.get(name):
            raise errors.unsupported_parameter(name)
    if body.get("modalities") not in (None, ["text"]):
        raise errors.unsupported_value("modalities", "Only the modality 'text' is supported.")
    form = _mapping(body, "response_format")
    if form and form.get("type") != "text":
        raise errors.unsupported_value("response_format", "Only the format 'text' is supported.")


def with_key(create: Create, key: str | None, body: Body) -> Create:
    """The same with the key of an `Idempotency-Key` header. `body` is what `create` was made from.

    Raises:
        errors.ApiError: longer than a key may be.
    """
    if not key:
        return create
    if len(key) > MAX_LABEL_CHARS:
        raise errors.invalid_value(
            "Idempotency-Key", f"An idempotency key has at most {MAX_LABEL_CHARS} characters."
        )
    return dataclasses.replace(create, idempotency_key=key, body_digest=body_digest(body))


# How an answer is delivered. A request that differs only in these asks for the same response.
_DELIVERY_FIELDS: Final = frozenset(
    {"type", "stream", "stream_options", "stream_id", "idempotency_key"}
)


def body_digest(body: Body) -> str:
    """Digest of what a client asks for, in canonical form: members sorted, without those that are
    null or say only how the answer is delivered. Fields that this product ignores count too."""
    asked = {
        name: value
        for name, value in body.items()
        if value is not None and name not in _DELIVERY_FIELDS
    }
    try:
        canonical = msgspec.json.encode(asked, order="sorted")
    except (UnicodeError, RecursionError) as error:
        raise errors.invalid_json() from error
    return hashlib.blake2b(canonical, digest_size=16).hexdigest()


# ---- shared


def _create(
    body: Body,
    turn: _SharedFields,
    pool: Pool,
    model: str,
    messages: list[dict[str, Any]],
    asked: int | None,
) -> Create:
    """What both dialects spell alike."""
    return Create(
        model=model,
        pool=pool.name,
        # `flex` is the public name for "cheaper and later".
        priority="batch" if turn.service_tier == "flex" else "interactive",
        input=messages,
        items=[_item(m) for m in messages],
        sampling=records.Sampling(
            max_tokens=asked or pool.default_output_tokens,
            temperature=_or(turn.temperature, pool.default_temperature),
            top_p=_or(turn.top_p, pool.default_top_p),
            presence_penalty=_or(turn.presence_penalty, 0.0),
            frequency_penalty=_or(turn.frequency_penalty, 0.0),
            stop=_stops(body),
            seed=turn.seed,
            logit_bias=_logit_bias(body),
        ),
        max_output_tokens=asked,
        store=_or(turn.store, True),
        metadata=_metadata(body),
        user=turn.user,
        safety_identifier=turn.safety_identifier,
        prompt_cache_key=turn.prompt_cache_key,
    )


def _pool(body: Body, pools: Sequence[Pool]) -> tuple[Pool, str]:
    model = body.get("model")
    if model is None:
        return pools[0], pools[0].models[0]
    if not isinstance(model, str):
        raise errors.invalid_type("model", "a string")
    for pool in pools:
        if model in pool.models:
            return pool, model
    raise errors.model_not_found(model)


def _refuse_tools(body: Body) -> None:
    if body.get("tools"):
        raise errors.unsupported_parameter("tools", "Tools are not supported.")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise errors.unsupported_value("tool_choice", "Tools are not supported.")


def _message(item: Any, where: str, types: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise errors.invalid_type(where, "an object")
    if types and item.get("type", types[0]) not in types:
        raise errors.unsupported_value(f"{where}.type", "Only message items are supported.")
    role = item.get("role")
    if role is None:
        raise errors.missing_required_parameter(f"{where}.role")
    if not isinstance(role, str) or role not in _ROLES:
        raise errors.unsupported_value(
            f"{where}.role", f"Supported roles are: {', '.join(_ROLES)}."
        )
    if item.get("tool_calls") or item.get("function_call"):
        raise errors.unsupported_parameter(f"{where}.tool_calls", "Tools are not supported.")
    return {"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        raise errors.missing_required_parameter(where)
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise errors.invalid_type(where, f"a string or an array of at most {MAX_PARTS} parts")
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(value))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise errors.invalid_type(where, "an object")
    if part.get("type") not in _TEXT_PARTS:
        raise errors.unsupported_value(f"{where}.type", "Only text is supported.")
    text = part.get("text")
    if not isinstance(text, str):
        raise errors.invalid_type(f"{where}.text", "a string")
    return text


def _within(pool: Pool, messages: list[dict[str, Any]], param: str) -> list[dict[str, Any]]:
    if sum(len(m["content"]) for m in messages) > pool.max_model_len * CHARS_PER_TOKEN:
        raise errors.context_length_exceeded(pool.max_model_len, param)
    return messages


def _max_tokens(value: int | None, name: str, pool: Pool) -> int | None:
    if value is not None and not 1 <= value <= pool.max_model_len:
        raise errors.out_of_range(name, 1, pool.max_model_len)
    return value


def _stops(body: Body) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(s, str) for s in stops):
        raise errors.invalid_type("stop", "a string or an array of strings")
    if len(stops) > MAX_STOPS or not all(0 < len(s) <= MAX_STOP_CHARS for s in stops):
        raise errors.invalid_value(
            "stop",
            (
                f"Invalid 'stop': expected at most {MAX_STOPS} sequences of 1 to "
                f"{MAX_STOP_CHARS} characters."
            ),
        )
    return tuple(stops)


def _logit_bias(body: Body) -> dict[str, float]:
    value = body.get("logit_bias")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.invalid_type("logit_bias", "an object of token ids and numbers")
    if len(value) > MAX_LOGIT_BIAS:
        raise errors.invalid_value(
            "logit_bias", f"Invalid 'logit_bias': expected at most {MAX_LOGIT_BIAS} entries."
        )
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 7):
            raise errors.invalid_value(
                "logit_bias", "Invalid 'logit_bias': keys must be token ids."
            )
        if type(bias) not in (int, float) or not math.isfinite(bias) or not -100 <= bias <= 100:
            raise errors.invalid_value(
                "logit_bias", "Invalid 'logit_bias': values must be numbers from -100 to 100."
            )
    return {token: float(bias) for token, bias in value.items()}


def _metadata(body: Body) -> dict[str, str] | None:
    value = body.get("metadata")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise errors.invalid_type("metadata", "an object")
    if len(value) > MAX_METADATA_PAIRS:
        raise errors.invalid_value(
            "metadata", f"Invalid 'metadata': expected at most {MAX_METADATA_PAIRS} pairs."
        )
    for key, text in value.items():
        if not isinstance(text, str):
            raise errors.invalid_type("metadata", "strings as values")
        if len(key) > MAX_METADATA_KEY or len(text) > MAX_METADATA_VALUE:
            raise errors.invalid_value(
                "metadata",
                (
                    f"Invalid 'metadata': keys have at most {MAX_METADATA_KEY} characters, "
                    f"values at most {MAX_METADATA_VALUE}."
                ),
            )
    return value


def _mapping(body: Body, name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise errors.invalid_type(name, "an object")
    return value
