"""Twenty JSON schemas, of the kinds that clients send."""

from __future__ import annotations

from typing import Any, Final


def _object(optional: tuple[str, ...] = (), /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }


_INTEGER: Final = {"type": "integer", "minimum": 0, "maximum": 999}
_WORD: Final = {"type": "string", "maxLength": 6}
_BOOL: Final = {"type": "boolean"}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "flag": _object(ok=_BOOL),
    "two members": _object(ok=_BOOL, count=_INTEGER),
    "optional member": _object(("note",), ok=_BOOL, note={"enum": ["a", "b"]}),
    "nested": _object(outer=_object(inner=_object(ok=_BOOL))),
    "list": _object(items={"type": "array", "items": _INTEGER, "minItems": 1, "maxItems": 3}),
    "list of objects": _object(
        rows={"type": "array", "items": _object(ok=_BOOL), "minItems": 1, "maxItems": 2}
    ),
    "top-level list": {"type": "array", "items": _BOOL, "minItems": 1, "maxItems": 4},
    "one of some": _object(color={"enum": ["red", "green", "blue"]}),
    "not only ASCII": _object(**{"größe": {"enum": ["kleín", "大", "😀"]}, "日": _BOOL}),
    "constant": _object(version={"const": "v1"}, ok=_BOOL),
    "null or text": _object(value={"anyOf": [{"type": "null"}, {"enum": ["x", "y"]}]}),
    "either object": {"anyOf": [_object(a=_BOOL), _object(b={"enum": [1, 2, 3]})]},
    "reference": {
        "$defs": {"p": _object(x=_INTEGER, y=_INTEGER)},
        **_object(at={"$ref": "#/$defs/p"}),
    },
    "recursion": {
        "$defs": {"n": _object(v=_BOOL, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]})},
        "$ref": "#/$defs/n",
    },
    "pattern": _object(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "date": _object(on={"type": "string", "format": "date"}),
    "short text": _object(word=_WORD),
    "number": _object(n=_INTEGER, m={"type": "integer", "minimum": -5, "maximum": 5}),
    "types": _object(x={"type": ["boolean", "null"]}, y=_BOOL),
    "map": {"type": "object", "additionalProperties": _BOOL, "maxProperties": 2},
}
SOME: Final = tuple(SCHEMAS)
ENDLESS: Final = frozenset({"recursion", "map"})  # a model may go on with these as long as it likes
