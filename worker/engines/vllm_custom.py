r"""Grammars of custom tools, written inside of a JSON string.

A model calls a custom tool like a function of one text: `{"input": "…"}`. The text obeys the
client's grammar, and in the call it is JSON: a quotation mark is `\"`. So the grammar must describe
escaped text. xgrammar converts Lark and regular expressions to its own notation (EBNF), and there
only literals and character classes must be rewritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from tailrace.prompts import chat_template
from worker.engines import base

TITLE: Final = "tailrace-custom:"  # begins the title of the parameters of a tool with a grammar

_TOKEN: Final = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|\w+|.', re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)|(.)", re.DOTALL)
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_SHORT: Final = '"\\\n\r\t\b\f'  # characters whose escape in JSON is two characters
_LAST: Final = 0x10FFFF

Ranges = list[tuple[int, int]]


def grammars(tools: Sequence[dict[str, Any]]) -> dict[str, str]:
    """For each custom tool with a grammar: the title of its parameters, and the EBNF of them.

    Raises:
        Refused: the engine cannot read a grammar.
    """
    by_title = {}
    for tool in tools:
        custom = tool.get("custom") or {}
        form = custom.get("format") or {}
        if form.get("type") != "grammar":
            continue
        try:
            by_title[TITLE + custom["name"]] = _arguments(_ebnf(form))
        except (ValueError, RuntimeError) as error:
            message = f"The grammar of the tool {custom['name']!r} cannot be used: {error}"
            raise base.Refused("invalid_prompt", message[:500]) from error
    return by_title


def _ebnf(form: dict[str, Any]) -> str:
    import xgrammar

    if form.get("syntax") == "regex":
        return str(xgrammar.Grammar.from_regex(form["definition"]))
    return str(xgrammar.Grammar.from_lark(form["definition"]))


def _arguments(ebnf: str) -> str:
    name = json.dumps(chat_template.CUSTOM_INPUT)
    frame = _literal(f"{{{name}: " + '"'), _literal('"}')
    return f"root ::= {frame[0]} text {frame[1]}\n{in_json(ebnf)}"


def in_json(ebnf: str) -> str:
    """The same grammar of JSON-escaped text. Its first rule is called `text` instead of `root`.

    Raises:
        ValueError: no character of a class is possible in JSON.
    """
    return "".join(map(_rewritten, _TOKEN.findall(ebnf)))


def _rewritten(part: str) -> str:
    if part == "root":
        return "text"
    if len(part) > 1 and part[0] == '"':
        text = "".join(map(chr, _characters(part[1:-1])))
        return _literal(json.dumps(text, ensure_ascii=False)[1:-1])
    if len(part) > 1 and part[0] == "[":
        return _class(part[1:-1])
    return part


def _literal(text: str) -> str:
    return '"' + "".join(map(_escape, map(ord, text))) + '"'


def _class(inside: str) -> str:
    negation = inside.startswith("^")
    members = _ranges(inside[1:] if negation else inside)
    if negation:
        members = _without([(0, _LAST)], members)
    escapes = [c for c in _SHORT if any(a <= ord(c) <= b for a, b in members)]
    plain = _without(members, [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0xD800, 0xDFFF)])
    ways = [_literal(json.dumps(c)[1:-1]) for c in escapes]
    if plain:
        ranges = (_escape(a) if a == b else f"{_escape(a)}-{_escape(b)}" for a, b in plain)
        ways.append("[" + "".join(ranges) + "]")
    if not ways:
        raise ValueError("a character class has no character that JSON can hold")
    return "(" + " | ".join(ways) + ")"


def _ranges(inside: str) -> Ranges:
    ranges: Ranges = []
    tokens = [m.group(0) for m in _ESCAPE.finditer(inside)]
    at = 0
    while at < len(tokens):
        [first] = _characters(tokens[at])
        last = first
        if at + 2 < len(tokens) and tokens[at + 1] == "-":
            [last] = _characters(tokens[at + 2])
            at += 2
        ranges.append((first, last))
        at += 1
    return ranges


def _without(ranges: Ranges, excluded: Ranges) -> Ranges:
    for low, high in excluded:
        remaining: Ranges = []
        for a, b in ranges:
            remaining += [r for r in ((a, min(b, low - 1)), (max(a, high + 1), b)) if r[0] <= r[1]]
        ranges = remaining
    return ranges


def _characters(text: str) -> list[int]:
    """Code points of EBNF text with escapes."""
    codes = []
    for escape, plain in _ESCAPE.findall(text):
        if plain:
            codes.append(ord(plain))
        elif escape[0] in "xuU" and len(escape) > 1:
            codes.append(int(escape[1:], 16))
        else:
            codes.append(ord(_NAMED.get(escape, escape)))
    return codes


def _escape(code: int) -> str:
    """One character in a literal or a class of EBNF."""
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in " _{}:,.;=<>/+*()|!?#%&@'~$`"):
        return character
    if character in '"\\]-^[':
        return "\\" + character
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
