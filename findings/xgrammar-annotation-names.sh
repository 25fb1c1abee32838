#!/bin/sh
# xgrammar 0.2.8: of two object schemas that differ only in properties called `title` or `description`
# the second gets the grammar of the first.
#
# Its cache of schemas compares them without the members title, default, description, examples,
# deprecated, readOnly, writeOnly, $comment and $schema. It leaves them out also where they are names
# of properties or of a constant's members, and no annotations. So here `b` must have an integer,
# though its schema says null.
#
# Output seen:
#   0.2.8 {"a": {"title": 1}, "b": {"title": null}} False
#   0.2.8 {"a": {"title": 1}, "b": {"title": 2}} True
#   0.2.8 {"a": {"name": 1}, "b": {"name": null}} True
#   0.2.8 {"a": {"name": 1}, "b": {"name": 2}} False
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install xgrammar==0.2.8
"$folder/venv/bin/python" - <<'END'
import sys
from importlib.metadata import version

import xgrammar


def allows(name, text):
    """Whether a text is one of an object with an object `a` of an integer and `b` of null."""
    inner = lambda kind: {"type": "object", "properties": {name: {"type": kind}}, "required": [name]}
    schema = {
        "type": "object",
        "properties": {"a": inner("integer"), "b": inner("null")},
        "required": ["a", "b"],
    }
    characters = ["</s>", *map(chr, range(32, 127))]
    tokens = xgrammar.TokenizerInfo(characters, stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(tokens).compile_json_schema(schema, any_whitespace=False)
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(0)


as_seen = True
for name, is_wrong in (("title", True), ("name", False)):
    for value, is_valid in (("null", True), ("2", False)):
        text = f'{{"a": {{"{name}": 1}}, "b": {{"{name}": {value}}}}}'
        result = allows(name, text)
        print(version("xgrammar"), text, result)
        as_seen = as_seen and result == (is_valid != is_wrong)
if not as_seen:
    sys.exit("this has changed")
END
