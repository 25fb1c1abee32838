"""Which regular expressions the engine's grammar honours."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st

from gateway.parsing import patterns
from tests.support import cases

HONOURED = [
    "",
    "^$",
    "^[a-z0-9_-]{2,64}$",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    "^(a|b)?c*$",
    "^a|b$",
    "(?:ab){2}",
    "(?<year>[0-9]{4})",
    "(?P<n>a)",
    "a+?",
    ".*",
    r"^\s*$",
    '^[^"]*$',
    r"[\s\S]",
    r"[!-~]",
    "[a-]",
    r"[\d-]",
    "é😀",
    r"\u00e9\x41",
    r"\/\-\.",
    "a]b}",
]
REFUSED = [
    (r"(?=a)b", "lookarounds"),
    (r"(?!a)b", "lookarounds"),
    (r"(?<=a)b", "lookarounds"),
    (r"(?i)a", "lookarounds"),
    (r"\bword\b", "escape"),
    (r"(a)\1", "escape"),
    (r"\p{L}", "escape"),
    (r"\cA", "escape"),
    ("\\", "escape"),
    (r"\x4", "escape"),
    (r"\ud800", "escape"),
    ("(", "without"),
    (")", "without"),
    ("[", "without"),
    ("[]a]", "empty"),
    ("[z-a]", "range"),
    (r"[a-\d]", "range"),
    ("[[:alpha:]]", "named"),
    ("*", "nothing to repeat"),
    ("^*", "nothing to repeat"),
    ("a**", "repeats"),
    ("a++", "repeats"),
    ("a{3,2}", "before"),
    ("a{,3}", "repetition"),
    ("{", "nothing to repeat"),
    ("x{a}", "repetition"),
    ("a^b", "end"),
    ("(?:^a$)", "end"),
    ("a$b", "end"),
    ('a"b', "quote"),
    (r"a\\b", "quote"),
    (r"a\nb", "quote"),
    (r"\u0022", "quote"),
    ('["]', "quote"),
    (r"[\n\t]", "quote"),
    (r"[\n-\r]", "quote"),
    (r"[^\s\S]", "quote"),
    ("[^ -\U0010ffff]", "quote"),
    (r"[!-\d]", "range"),
    ("(a{100}){100}", "large"),
    ("a{99999}", "large"),
    ("(" * 40 + "a" + ")" * 40, "nested"),
    ("a" * 1025, "1024"),
]


@cases.each("pattern", HONOURED)
def test_honoured(pattern: str) -> None:
    assert patterns.problem(pattern) is None


@cases.each(("pattern", "why"), REFUSED)
def test_what_the_engine_ignores_or_spoils_is_named(pattern: str, why: str) -> None:
    assert why in (patterns.problem(pattern) or "")


@cases.each("pattern", ['a"b', r"a\\b", r"\n", '["]'])
def test_outside_of_json_every_character_may_stand(pattern: str) -> None:
    assert patterns.problem(pattern, in_json=False) is None


@hypothesis.given(st.text('ab01^$|()[]{}?*+.,-\\dnux"<>:=P', max_size=24) | st.text(max_size=12))
def test_any_text_has_an_answer(pattern: str) -> None:
    for in_json in (True, False):
        assert patterns.problem(pattern, in_json=in_json) != ""
