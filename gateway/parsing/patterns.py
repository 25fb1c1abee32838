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
        members, useful = 0, negated
        while not self._skip("]"):
            members += 1
            low = high = self._member()
            if self._peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._member()
                if low is None or high is None or high < low:
                    raise Unsupported("a range in a character class is not valid")
            useful = useful or low is None or high != low or not self._spoils(low)
        if not members:
            raise Unsupported("it has an empty character class")
        if not useful:
            raise Unsupported(_SPOILS)

    def _member(self) -> str | None:
        char = self._peek()
        self.at += 1
        if char == "":
            raise Unsupported("it has a '[' without a ']'")
        if char == "[":
            if self._peek() and self._peek() in ":.=":
                raise Unsupported("named character classes are not supported")
            return char
        return self._escape() if char == "\\" else char

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self.at += 1
        return True
