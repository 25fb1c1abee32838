"""Grammars rewritten for text inside of JSON. tests/contract/test_vllm.py uses them."""

from __future__ import annotations

import pytest

from tests.support import cases
from worker.engines import vllm_custom


@cases.each(
    ("ebnf", "rewritten"),
    [
        ('root ::= (("a" root_0))', 'text ::= (("a" root_0))'),
        (r'root ::= ("say \"hi\"\n")', r'text ::= ("say \\\"hi\\\"\\n")'),
        (r"root ::= ([a-c\"] | [\n])", r'text ::= (("\\\"" | [a-c]) | ("\\n"))'),
        ("root ::= ((root_1{2, 3}))", "text ::= ((root_1{2, 3}))"),
    ],
)
def test_literals_and_classes_are_escaped_and_the_rest_is_kept(ebnf: str, rewritten: str) -> None:
    assert vllm_custom.in_json(ebnf) == rewritten


def test_all_but_some_characters_leaves_out_what_json_cannot_hold_as_it_is() -> None:
    grammar = vllm_custom.in_json(r'x ::= [^a"]')
    assert '"\\\\\\"' not in grammar, "the quotation mark was excluded"
    assert r'"\\\\"' in grammar, "the backslash is escaped"
    assert r'"\\n"' in grammar
    assert "\\u0000" not in grammar
    assert r"[ -!#-\[\]-`b-" in grammar, "all that JSON holds as it is, but a"


def test_a_class_of_control_characters_alone_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        vllm_custom.in_json(r"x ::= [\x01-\x02]")
