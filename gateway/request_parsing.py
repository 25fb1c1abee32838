"""From a client's body to one checked command: what is accepted, what is refused, and within which
bounds (pure).

Two dialects, Responses and Chat Completions, end in the same `Create`. Fields this product does not
know are ignored, because clients send many; fields it knows and cannot honour are refused by name,
because an answer that silently ignored them would be wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

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
# no text of a real tokenizer is denser; the engine counts exactly, this only keeps absurd inputs
# out of the log
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


@dataclass(frozen=True, slots=True)
class Create:
    """A checked request for one response.

    Attributes:
        input: this turn as chat messages `{"role", "content"}`, without instructions.
        items: the same as the client is shown it (`input_items`).
        max_output_tokens: as asked, for the echo; the effective bound is in `sampling`.
        previous: the id this one continues; not yet resolved.
        usage_in_stream: Chat Completions' `include_usage`.
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


# ---- Responses
# ------------------------------------------------------------------------------------------


def of_responses(body: Body, pools: Sequence[Pool], *, websocket: bool = False) -> Create:
    """A body of `POST /v1/responses`, or a `response.create` event.

    Raises:
        errors.ApiError: 400 naming the field, or 404 for an unknown model.
    """
    pool, model = _pool(body, pools)
    _refuse_unsupported(body, websocket=websocket)
    store, background = (
        _flag(body, "store", True),
        not websocket and _flag(body, "background", False),
    )
    if background and not store:
        raise errors.invalid_value(
            "background", "Background can only be used when 'store' is true."
        )
    generate = _flag(body, "generate", True) if websocket else True
    previous = _text(body, "previous_response_id", MAX_LABEL_CHARS)
    instructions = _text(body, "instructions", pool.max_model_len * CHARS_PER_TOKEN)
    messages = _input(body, pool, required=generate and previous is None)
    asked = _max_tokens(body, "max_output_tokens", pool)
    return dataclasses.replace(
        _create(body, pool, model, messages, asked),
        instructions=instructions,
        previous=previous,
        background=background,
        stream=websocket or _flag(body, "stream", False),
        generate=generate,
        parallel_tool_calls=_flag(body, "parallel_tool_calls", True),
        idempotency_key=_text(body, "idempotency_key", MAX_LABEL_CHARS) if websocket else None,
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


def _priority(body: Body) -> topics.PriorityClass:
    """`flex` is the public name for "cheaper and later"."""
    tier = body.get("service_tier")
    if tier is not None and not isinstance(tier, str):
        raise errors.invalid_type("service_tier", "a string")
    return "batch" if tier == "flex" else "interactive"


# ---- Chat Completions
# -----------------------------------------------------------------------------------


def of_chat(body: Body, pools: Sequence[Pool]) -> Create:
    """A body of `POST /v1/chat/completions`; raises like `of_responses`."""
    pool, model = _pool(body, pools)
    _refuse_unsupported_chat(body)
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
    asked = _max_tokens(body, "max_completion_tokens", pool) or _max_tokens(
        body, "max_tokens", pool
    )
    return dataclasses.replace(
        _create(body, pool, model, messages, asked),
        stream=_flag(body, "stream", False),
        usage_in_stream=_flag(_mapping(body, "stream_options"), "include_usage", False),
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


def with_key(create: Create, key: str | None) -> Create:
    """The same with the key of an `Idempotency-Key` header.

    Raises:
        errors.ApiError: longer than a key may be.
    """
    if not key:
        return create
    if len(key) > MAX_LABEL_CHARS:
        raise errors.invalid_value(
            "Idempotency-Key", f"An idempotency key has at most {MAX_LABEL_CHARS} characters."
        )
    return dataclasses.replace(create, idempotency_key=key)


# ---- shared
# ---------------------------------------------------------------------------------------------


def _create(
    body: Body, pool: Pool, model: str, messages: list[dict[str, Any]], asked: int | None
) -> Create:
    """What both dialects spell alike."""
    return Create(
        model=model,
        pool=pool.name,
        priority=_priority(body),
        input=messages,
        items=[_item(m) for m in messages],
        sampling=_sampling(body, pool, asked),
        max_output_tokens=asked,
        store=_flag(body, "store", True),
        metadata=_metadata(body),
        user=_text(body, "user", MAX_LABEL_CHARS),
        safety_identifier=_text(body, "safety_identifier", MAX_LABEL_CHARS),
        prompt_cache_key=_text(body, "prompt_cache_key", MAX_LABEL_CHARS),
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


def _max_tokens(body: Body, name: str, pool: Pool) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise errors.invalid_type(name, "an integer")
    if not 1 <= value <= pool.max_model_len:
        raise errors.out_of_range(name, 1, pool.max_model_len)
    return value


def _sampling(body: Body, pool: Pool, asked: int | None) -> records.Sampling:
    top_p = _number(body, "top_p", 0.0, 1.0, pool.default_top_p)
    if top_p == 0.0:
        raise errors.invalid_value(
            "top_p", "Invalid 'top_p': expected a value above 0 and at most 1."
        )
    return records.Sampling(
        max_tokens=asked or pool.default_output_tokens,
        temperature=_number(body, "temperature", 0.0, 2.0, pool.default_temperature),
        top_p=top_p,
        presence_penalty=_number(body, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=_number(body, "frequency_penalty", -2.0, 2.0, 0.0),
        stop=_stops(body),
        seed=_seed(body),
        logit_bias=_logit_bias(body),
    )


def _number(body: Body, name: str, low: float, high: float, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if type(value) not in (int, float):
        raise errors.invalid_type(name, "a number")
    if not low <= value <= high:
        raise errors.out_of_range(name, low, high)
    return float(value)


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


def _seed(body: Body) -> int | None:
    value = body.get("seed")
    if value is None:
        return None
    if type(value) is not int:
        raise errors.invalid_type("seed", "an integer")
    if not -(2**63) <= value < 2**63:
        raise errors.invalid_value("seed", "Invalid 'seed': expected a 64-bit integer.")
    return value


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


def _typed(body: Body, name: str, accept: Callable[[Any], bool], expected: str, default: T) -> T:
    value = body.get(name)
    if value is None:
        return default
    if not accept(value):
        raise errors.invalid_type(name, expected)
    checked: T = value
    return checked


def _flag(body: Body, name: str, default: bool) -> bool:
    return _typed(body, name, lambda v: type(v) is bool, "a boolean", default)


def _mapping(body: Body, name: str) -> dict[str, Any]:
    empty: dict[str, Any] = {}
    return _typed(body, name, lambda v: isinstance(v, dict), "an object", empty)


def _text(body: Body, name: str, most: int) -> str | None:
    nothing: str | None = None
    value = _typed(body, name, lambda v: isinstance(v, str), "a string", nothing)
    if value is not None and len(value) > most:
        raise errors.invalid_value(name, f"Invalid '{name}': expected at most {most} characters.")
    return value
