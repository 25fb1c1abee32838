#!/bin/sh
# xgrammar 0.2.8: texts of the formats json-pointer and email, and of patterns with a character beyond
# ASCII, may be no JSON.
#
# Texts of a format, and of a pattern with a character outside of printable ASCII, are not held to
# JSON's escapes as those of other patterns are: a quotation mark, a control character and an unknown
# escape come as they are. The same pattern with \u00e9 in place of the letter is right.
#
# Output seen:
#   0.2.8 {"format": "json-pointer"} '"/\t"' True
#   0.2.8 {"format": "email"} '"\\"\\q\\"@a"' True
#   0.2.8 {"pattern": "é."} '"é\t"' True
#   0.2.8 {"pattern": "\\u00e9."} '"é\t"' False
#
# Exits 0 while this is so, 1 when it has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install xgrammar==0.2.8
"$folder/venv/bin/python" - <<'END'
import json
import sys
from importlib.metadata import version

import xgrammar


def allows(schema, text):
    characters = ["</s>", "\t", "é", *map(chr, range(32, 127))]
    tokens = xgrammar.TokenizerInfo(characters, stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(tokens).compile_json_schema(
        {"type": "string", **schema}, any_whitespace=False
    )
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(0)


cases = [
    ({"format": "json-pointer"}, '"/\t"', True),
    ({"format": "email"}, r'"\"\q\"@a"', True),
    ({"pattern": "é."}, '"é\t"', True),
    ({"pattern": r"\u00e9."}, '"é\t"', False),
]
as_seen = True
for schema, text, result_seen in cases:
    result = allows(schema, text)
    print(version("xgrammar"), json.dumps(schema, ensure_ascii=False), repr(text), result)
    as_seen = as_seen and result == result_seen
if not as_seen:
    sys.exit("this has changed")
END
