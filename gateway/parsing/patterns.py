"""Checks that the engine's grammar matches a regular expression exactly (pure).

xgrammar matches a pattern against the whole string, ignores lookarounds and anchors in the middle,
and writes a literal quote, backslash or control character into JSON unescaped. This module names
such parts, and the caller refuses them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_PATTERN_CHARS: Final = 1024
MAX_PATTERN_STATES: Final = 4096  # characters of the pattern with its repetitions written out
MAX_NESTING: Final = 32

_HEX: Final = {"x": re.compile(r"[0-9a-fA-F]{2}"), "u": re.compile(r"[0-9a-fA-F]{4}")}
_BRACED: Final = re.compile(r"\{([0-9a-fA-F]{1,6})\}")
_GROUP: Final = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)")
_COUNT: Final = re.compile(r"\{(\d{1,6})(,(\d{0,6}))?\}")
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}

_LAST: Final = 0x10FFFF
_CLASSES: Final = {  # as ranges of code points
    "d": [(0x30, 0x39)],
    "w": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "s": [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0)],
}
_UNUSABLE: Final = [(0xD800, 0xDFFF)]  # surrogates
_UNUSABLE_IN_JSON: Final = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), *_UNUSABLE]

_SPOILS: Final = "it has a quote, a backslash or a control character as a literal"


class Unsupported(Exception):
    """The part of a pattern that is not supported, as text for the client."""


def problem(pattern: str, *, in_json: bool = True) -> str | None:
    """Why the engine does not support `pattern`; None if it does.

    Args:
        in_json: the matched text is part of a JSON string.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"it has more than {MAX_PATTERN_CHARS} characters"
    try:
        _Parser(pattern, in_json).whole()
    except Unsupported as error:
        return str(error)
    return None


def _complement(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The other code points."""
    others, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            others.append((start, low - 1))
        start = max(start, high + 1)
    return [*others, (start, _LAST)] if start <= _LAST else others


@dataclass(slots=True)
class _Parser:
    """Reads one pattern from left to right.

    Attributes:
        at: index of the next character.
        depth: open groups.
    """

    text: str
    in_json: bool
    at: int = 0
    depth: int = 0

    def whole(self) -> None:
        """Read all of it."""
        self._alternatives()
        if self.at < len(self.text):
            raise Unsupported("it has a ')' without a '('")

    def _alternatives(self) -> int:
        """Size of `a|b|…`, up to the end or a closing parenthesis."""
        size = self._sequence()
        while self._skip("|"):
            size += self._sequence()
        return size

    def _sequence(self) -> int:
        if self.depth == 0:
            self._skip("^")
        size = 1
        while (char := self._peek()) not in ("", "|", ")"):
            if (
                char == "$"
                and self.depth == 0
                and self.text[self.at + 1 : self.at + 2] in ("", "|")
            ):
                self.at += 1
                break
            size += self._repetition(self._atom(char))
            if size > MAX_PATTERN_STATES:
                raise Unsupported("it is too large with its repetitions written out")
        return size

    def _repetition(self, size: int) -> int:
        char = self._peek()
        if char and char in "*+?":
            self.at += 1
        elif char == "{":
            count = _COUNT.match(self.text, self.at)
            if count is None:
                raise Unsupported("it has a '{' that does not begin a repetition like {2,5}")
            least, most = int(count[1]), int(count[3]) if count[3] else int(count[1])
            if most < least:
                raise Unsupported("a repetition ends before it begins")
            self.at = count.end()
            size *= max(1, most)
        else:
            return size
        self._skip("?")  # lazy: the same language
        if self._peek() and self._peek() in "*+?{":
            raise Unsupported("it repeats a repetition")
        return size

    def _atom(self, char: str) -> int:
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            self._class()
        elif char == "\\":
            self._literal(self._escape())
        elif char in "^$":
            raise Unsupported(f"it has a '{char}' that is not at an end of the whole pattern")
        elif char in "*+?{":
            raise Unsupported(f"it has a '{char}' with nothing to repeat")
        elif char != ".":
            self._literal(char)
        return 1

    def _group(self) -> int:
        if self._peek() == "?":
            opening = _GROUP.match(self.text, self.at)
            if opening is None:
                raise Unsupported("lookarounds and flags are not supported")
            self.at = opening.end()
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Unsupported(f"its groups are nested deeper than {MAX_NESTING}")
        size = self._alternatives()
        self.depth -= 1
        if not self._skip(")"):
            raise Unsupported("it has a '(' without a ')'")
        return size

    def _literal(self, char: str | None) -> None:
        if char is not None and self._spoils(char):
            raise Unsupported(_SPOILS)

    def _spoils(self, char: str) -> bool:
        return self.in_json and (char in '"\\' or char < " ")

    def _escape(self) -> str | None:
        """The character that an escape stands for; None for a class like `\\d`."""
        char = self._peek()
        self.at += 1
        if char and char in "dDwWsS":
            return None
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in _HEX:
            digits = _HEX[char].match(self.text, self.at)
            braced = _BRACED.match(self.text, self.at) if char == "u" else None
            if code_digits := digits or braced:
                self.at = code_digits.end()
                code = int(code_digits[1] if code_digits is braced else code_digits[0], 16)
                if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
                    return chr(code)
        if char == "" or char.isalnum() or not char.isascii():
            raise Unsupported(f"the escape '\\{char}' is not supported")
        return char

    def _class(self) -> None:
        negated = self._skip("^")
        ranges: list[tuple[int, int]] = []
        while not self._skip("]"):
            first = self._member()
            ranges += first
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self._member()
                low, high = first[0][0], last[0][1]
                if [*first, *last] != [(low, low), (high, high)] or high < low:
                    raise Unsupported("a range in a character class is not valid")
                ranges.append((low, high))
        if not ranges:
            raise Unsupported("it has an empty character class")
        outside = ranges if negated else _complement(ranges)
        unusable = _UNUSABLE_IN_JSON if self.in_json else _UNUSABLE
        if not _complement([*outside, *unusable]):
            raise Unsupported(_SPOILS if self.in_json else "a character class matches nothing")

    def _member(self) -> list[tuple[int, int]]:
        """The ranges of one member; one of one character if it is a character."""
        char = self._peek()
        self.at += 1
        if char == "":
            raise Unsupported("it has a '[' without a ']'")
        if char == "[":
            if self._peek() and self._peek() in ":.=":
                raise Unsupported("named character classes are not supported")
        elif char == "\\":
            name = self._peek()
            literal = self._escape()
            if literal is None:
                ranges = _CLASSES[name.lower()]
                return _complement(ranges) if name.isupper() else ranges
            char = literal
        return [(ord(char), ord(char))]

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self.at += 1
        return True
