"""A value for a JSON schema, as the scripted engine writes it (pure).

It exists for every schema that `gateway.parsing.schemas` admits: a small valid value, with its
members in the order in which they are declared.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

Part = str | None  # JSON text; None: where free text may stand, inside of a string

MAX_LEVEL: Final = 32  # nested schemas, references included
FURTHER_LEVELS: Final = 2  # for members that need not be there
MAX_LOOKS: Final = 20_000  # at schemas, all in all
MAX_PARTS: Final = 50_000

_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_FORMATTED: Final = {
    "email": "a@example.com",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "P1D",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "hostname": "example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "https://example.com/",
    "uri-reference": "/a",
    "uri-template": "/a/{b}",
    "json-pointer": "/a",
    "relative-json-pointer": "0/a",
}


class Impossible(Exception):
    """No value was found within the bounds."""


class _TooDeep(Exception):
    """No value with this number of levels exists."""


def parts(schema: Any) -> list[Part]:
    """A value of the schema, as JSON text in pieces. It has optional members too, if these are not
    much deeper.

    Raises:
        Impossible: no value was found within the bounds.
    """
    for levels in range(1, MAX_LEVEL):
        try:
            least = _Maker(schema).value(schema, levels)
        except _TooDeep:
            continue
        try:
            return _Maker(schema).value(schema, levels + FURTHER_LEVELS)
        except Impossible:
            return least
    raise Impossible


class _Maker:
    """Makes values of one schema's parts.

    Attributes:
        _looks: how many schemas it may still visit.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._looks = MAX_LOOKS

    def value(self, schema: Any, levels: int) -> list[Part]:
        """A value of at most `levels` levels."""
        self._looks -= 1
        if not self._looks:
            raise Impossible
        if levels == 0:
            raise _TooDeep
        if not isinstance(schema, dict):
            return _text(None)
        if "$ref" in schema:
            return self.value(self._target(schema["$ref"]), levels - 1)
        if "const" in schema:
            return [_json(schema["const"])]
        if "enum" in schema:
            return [_json(schema["enum"][0])]
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema:
                return self._first_of(schema[keyword], levels)
        return self._by_type(schema, levels)

    def _target(self, ref: str) -> Any:
        schema = self._root
        for name in ref.split("/")[1:]:
            schema = schema[name]
        return schema

    def _first_of(self, branches: list[Any], levels: int) -> list[Part]:
        for branch in branches:
            try:
                return self.value(branch, levels - 1)
            except _TooDeep:
                continue
        raise _TooDeep

    def _by_type(self, schema: dict[str, Any], levels: int) -> list[Part]:
        type_names = schema.get("type")
        type_ = type_names[0] if isinstance(type_names, list) else type_names
        if type_ is None:
            type_ = "object" if "properties" in schema else "array" if "items" in schema else None
        match type_:
            case "object":
                return self._object(schema, levels)
            case "array":
                return self._array(schema, levels)
            case "integer" | "number":
                return [_number(schema, whole=type_ == "integer")]
            case "boolean":
                return ["true"]
            case "null":
                return ["null"]
        return _string(schema)

    def _object(self, schema: dict[str, Any], levels: int) -> list[Part]:
        members: list[list[Part]] = []
        required = schema.get("required", ())
        room = schema.get("maxProperties", math.inf) - len(required)
        for name, inner in schema.get("properties", {}).items():
            if name not in required and room <= 0:
                continue
            try:
                members.append([f"{_json(name)}:", *self.value(inner, levels - 1)])
            except _TooDeep:
                if name in required:
                    raise
                continue
            room -= name not in required
        further = schema.get("additionalProperties") or schema.get("unevaluatedProperties")
        while further and len(members) < min(schema.get("minProperties", 0), MAX_PARTS):
            name = f"member_{len(members)}"
            members.append([f"{_json(name)}:", *self.value(further, levels - 1)])
        return ["{", *_join(members), "}"]

    def _array(self, schema: dict[str, Any], levels: int) -> list[Part]:
        items = [self.value(inner, levels - 1) for inner in schema.get("prefixItems", ())]
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        inner = schema.get("items", schema.get("unevaluatedItems"))
        items = items[: int(min(most, len(items)))]
        try:
            while inner not in (None, False) and len(items) < min(max(least, 1), most, MAX_PARTS):
                items.append(self.value(inner, levels - 1))
        except _TooDeep:
            if len(items) < least:
                raise
        return ["[", *_join(items), "]"]


def _join(values: list[list[Part]]) -> list[Part]:
    pieces: list[Part] = []
    for value in values:
        pieces += [*([","] if pieces else []), *value]
    return pieces


def _text(literal: str | None) -> list[Part]:
    return ['"', None, '"'] if literal is None else [_json(literal)]


def _string(schema: dict[str, Any]) -> list[Part]:
    if "format" in schema:
        return _text(_FORMATTED.get(schema["format"], ""))
    if "pattern" in schema:
        return _text(matching(schema["pattern"]))
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least > MAX_PARTS:
        raise Impossible
    if most is None:
        return ['"', _letters(least), None, '"']
    return _text(_letters(max(least, min(most, 8))))


def _letters(count: int) -> str:
    return (_LETTERS * (count // len(_LETTERS) + 1))[:count]


def _number(schema: dict[str, Any], *, whole: bool) -> str:
    step = 1 if whole else 0
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + step)
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - step)
    if whole:
        return str(int(min(max(7, low), high)))
    inside = min(max(7.5, low), high)
    if inside in (schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")):
        low, high = max(low, inside - 1), min(high, inside + 1)
        inside = (low + high) / 2
    return _json(inside)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- patterns, as gateway.parsing.patterns allows them

_SHORT: Final = {"d": "0", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_CANDIDATES: Final = "a0-_. ~!A,;:<é\n"


def matching(pattern: str) -> str:
    """A text that the whole pattern matches: the first alternative, each repetition as seldom as it
    may be.

    Raises:
        Impossible: no text was found within the bounds.
    """
    return _Pattern(pattern).alternatives()


class _Pattern:
    """Reads a pattern from left to right.

    Attributes:
        _at: index of the next character.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def alternatives(self) -> str:
        """The first of `a|b|…`, up to the end or a closing parenthesis."""
        first = self._sequence()
        while self._skip("|"):
            self._sequence()
        return first

    def _sequence(self) -> str:
        text = ""
        while (char := self._peek()) not in ("", "|", ")"):
            self._at += 1
            if char in "^$":
                continue
            text += self._repeat(self._atom(char))
            if len(text) > MAX_PARTS:
                raise Impossible
        return text

    def _repeat(self, atom: str) -> str:
        char, times = self._peek(), 1
        if char in ("*", "+", "?"):
            self._at += 1
            times = char == "+"
        elif char == "{":
            count = self._text[self._at + 1 : self._text.index("}", self._at)]
            self._at += len(count) + 2
            times = int(count.partition(",")[0])
        else:
            return atom
        self._skip("?")
        return atom * times

    def _atom(self, char: str) -> str:
        if char == "(":
            if self._skip("?"):
                self._at = self._text.index(">" if self._peek() != ":" else ":", self._at) + 1
            text = self.alternatives()
            self._skip(")")
            return text
        if char == "[":
            return self._class()
        if char == "\\":
            escape = self._escape()
            return _SHORT[escape[1]] if len(escape) > 1 else escape
        return "a" if char == "." else char

    def _escape(self) -> str:
        """The character that it stands for; `\\d` and the like as they are."""
        char = self._peek()
        self._at += 1
        if char in _SHORT:
            return f"\\{char}"
        if char in ("x", "u"):
            braced = char == "u" and self._peek() == "{"
            end = (
                self._text.index("}", self._at) if braced else self._at + (2 if char == "x" else 4)
            )
            digits = self._text[self._at + braced : end]
            self._at = end + braced
            return chr(int(digits, 16))
        return _CONTROLS.get(char, char)

    def _class(self) -> str:
        """The first character of it that JSON need not escape."""
        negated = self._skip("^")
        ranges: list[tuple[str, str]] = []
        shorts: list[str] = []
        while not self._skip("]"):
            low = high = self._member()
            if len(low) > 1:
                shorts.append(low[1])
                continue
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                high = self._member()
            ranges.append((low, high))
        candidates = _CANDIDATES if negated else _CANDIDATES + "".join(_from(ranges))
        for char in candidates:
            inside = any(low <= char <= high for low, high in ranges)
            inside = inside or any(_is_short(char, short) for short in shorts)
            if inside != negated:
                return char
        raise Impossible

    def _member(self) -> str:
        char = self._peek()
        self._at += 1
        return self._escape() if char == "\\" else char

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True


def _from(ranges: list[tuple[str, str]]) -> list[str]:
    """Some characters of ranges; those that JSON must escape are avoided."""
    characters = []
    for low, high in ranges:
        following = (chr(c) for c in range(ord(low), min(ord(low) + 40, ord(high) + 1)))
        characters += [c for c in following if c not in '"\\' and c >= " "]
    return characters


def _is_short(char: str, short: str) -> bool:
    word = char.isascii() and (char.isalnum() or char == "_")
    digit, space = char.isascii() and char.isdigit(), char.isspace()
    is_one = {"d": digit, "w": word, "s": space}[short.lower()]
    return is_one if short.islower() else not is_one
