"""The output format: `text.format`, `response_format`, and vLLM's fields (pure).

`Format.engine` is the form for workers:

    {"type": "json_schema", "schema": {…}, "strict": …}    any schema that passes `schemas.check`
    {"type": "json_object"}
    {"type": "regex", "pattern": "…"}
    {"type": "choice", "choices": ["…"]}
    {"type": "grammar", "definition": "…"}                 EBNF or Lark, as vLLM takes it

A format is enforced also with `strict: false`: the grammar is the only way to honour it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gateway.parsing import patterns, schemas
from gateway.parsing.json_body import Body, object_field
from tailrace.protocol import errors

MAX_GRAMMAR_CHARS: Final = 32_768
MAX_CHOICES: Final = 1024
MAX_CHOICE_CHARS: Final = 512
MAX_DESCRIPTION_CHARS: Final = 16_384

_OBJECT: Final = {"type": "json_object"}
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_GUIDED: Final = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
STRUCTURED: Final = ("json", "json_object", "regex", "choice", "grammar")
_NOT_STRUCTURED: Final = (
    "structural_tag",
    "whitespace_pattern",
    "disable_any_whitespace",
    "disable_additional_properties",
    "disable_fallback",
)


@dataclass(frozen=True, slots=True)
class Format:
    """A format other than text.

    Attributes:
        engine: the form for workers.
        echo: `text.format` of the Response object; None if that API lacks this format.
        param: its field, for errors.
    """

    engine: dict[str, Any]
    echo: dict[str, Any] | None
    param: str


def of_responses(body: Body) -> Format | None:
    """The format of a Responses body; None for text.

    Raises:
        errors.ApiError: 400 naming what is wrong in it.
    """
    value = object_field(body, "text").get("format")
    return _only(body, None if value is None else _read(value, "text.format", nested=False))


def of_chat(body: Body) -> Format | None:
    """The format of a Chat Completions body. Like `of_responses`."""
    value = body.get("response_format")
    return _only(body, None if value is None else _read(value, "response_format", nested=True))


def _only(body: Body, text_format: Format | None) -> Format | None:
    """The only format of a body, in OpenAI's fields or in vLLM's."""
    for name, kind in _GUIDED.items():
        if body.get(name) is not None:
            if text_format is not None:
                raise errors.invalid_value(
                    name, f"'{name}' cannot be combined with '{text_format.param}'."
                )
            text_format = _parse_structured(kind, body[name], name, name)
    name = "structured_outputs"
    value = object_field(body, name)
    for kind in _NOT_STRUCTURED:
        if value.get(kind) not in (None, False):
            raise errors.unsupported_parameter(f"{name}.{kind}")
    for kind in STRUCTURED:
        if value.get(kind) not in (None, False):
            if text_format is not None:
                raise errors.invalid_value(
                    f"{name}.{kind}",
                    f"'{name}.{kind}' cannot be combined with '{text_format.param}'.",
                )
            text_format = _parse_structured(kind, value[kind], f"{name}.{kind}", name)
    return text_format


def _read(value: Any, where: str, *, nested: bool) -> Format | None:
    """OpenAI's object. `nested`: Chat Completions has the schema one level deeper."""
    if not isinstance(value, dict):
        raise errors.invalid_type(where, "an object")
    kind = value.get("type")
    if kind is None:
        raise errors.missing_required_parameter(f"{where}.type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Format(_OBJECT, _OBJECT, where)
    if kind != "json_schema":
        raise errors.unsupported_value(
            f"{where}.type", "Supported formats are: text, json_object, json_schema."
        )
    if not nested:
        return _json_schema(value, where, where)
    path = f"{where}.json_schema"
    inner = value.get("json_schema")
    if inner is None:
        raise errors.missing_required_parameter(path)
    if not isinstance(inner, dict):
        raise errors.invalid_type(path, "an object")
    return _json_schema(inner, path, where)


def _json_schema(value: dict[str, Any], path: str, param: str) -> Format:
    name, schema = value.get("name"), value.get("schema")
    if name is None:
        raise errors.missing_required_parameter(f"{path}.name")
    if not isinstance(name, str):
        raise errors.invalid_type(f"{path}.name", "a string")
    if not _NAME.match(name):
        raise errors.invalid_value(
            f"{path}.name",
            f"Invalid '{path}.name': expected 1 to 64 letters, digits, underscores and dashes.",
        )
    if schema is None:
        raise errors.missing_required_parameter(f"{path}.schema")
    strict = value.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise errors.invalid_type(f"{path}.strict", "a boolean")
    description = value.get("description")
    if description is not None and not isinstance(description, str):
        raise errors.invalid_type(f"{path}.description", "a string")
    if len(description or "") > MAX_DESCRIPTION_CHARS:
        raise errors.invalid_value(
            f"{path}.description",
            f"Invalid '{path}.description': expected at most {MAX_DESCRIPTION_CHARS} characters.",
        )
    schemas.check(schema, f"{path}.schema")
    return _enforce(schema, param, name, description, strict=strict is not False)


def _enforce(
    schema: dict[str, Any],
    param: str,
    name: str = "answer",
    description: str | None = None,
    *,
    strict: bool = True,
) -> Format:
    echo = {
        "type": "json_schema",
        "name": name,
        "description": description,
        "schema": schema,
        "strict": strict,
    }
    # An engine treats an empty schema as no schema.
    engine = {"type": "json_schema", "schema": schema, "strict": strict} if schema else _OBJECT
    return Format(engine, echo, param)


def _parse_structured(kind: str, value: Any, where: str, param: str) -> Format:
    """A format in one of vLLM's fields."""
    match kind:
        case "json":
            return _guided_json(value, where, param)
        case "json_object":
            if value is not True:
                raise errors.invalid_type(where, "a boolean")
            return Format(_OBJECT, _OBJECT, param)
        case "regex":
            if not isinstance(value, str):
                raise errors.invalid_type(where, "a string")
            if (why := patterns.problem(value, in_json=False)) is not None:
                raise errors.unsupported_value(where, f"The pattern cannot be enforced: {why}.")
            return Format({"type": "regex", "pattern": value}, None, param)
        case "choice":
            return Format({"type": "choice", "choices": _choices(value, where)}, None, param)
    return Format({"type": "grammar", "definition": grammar(value, where)}, None, param)


def _guided_json(value: Any, where: str, param: str) -> Format:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
            raise errors.invalid_value(where, f"Invalid '{where}': it is not JSON.") from error
    schemas.check(value, where)
    return _enforce(value, param)


def _choices(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise errors.invalid_type(where, "an array of strings")
    if not 1 <= len(value) <= MAX_CHOICES or not all(
        0 < len(each) <= MAX_CHOICE_CHARS for each in value
    ):
        raise errors.invalid_value(
            where,
            f"Invalid '{where}': expected 1 to {MAX_CHOICES} texts of 1 to {MAX_CHOICE_CHARS} "
            "characters.",
        )
    return value


def grammar(value: Any, where: str) -> str:
    """The text of a grammar. Only the engine can check it.

    Raises:
        errors.ApiError: it is not a text, or too long.
    """
    if not isinstance(value, str):
        raise errors.invalid_type(where, "a string")
    if not 0 < len(value) <= MAX_GRAMMAR_CHARS or "\0" in value:
        raise errors.invalid_value(
            where,
            f"Invalid '{where}': expected 1 to {MAX_GRAMMAR_CHARS} characters and no NUL.",
        )
    return value
