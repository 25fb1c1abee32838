#!/bin/sh
# xgrammar 0.2.8: an unsigned 64-bit integer as a constant becomes another number, and a range
# without a number of six decimals allows only the empty text.
#
# A number that does not fit in a signed 64-bit integer is read as a double, and written with 17
# digits: 18446744073709551615 becomes 18446744073709551616. Numbers of a range have at most six
# decimals. Where none is in the range there is no error: the empty text, which is no JSON, is
# all that the grammar allows.
#
# Output seen:
#   0.2.8 {"const": 18446744073709551615}: 18446744073709551615 False
#   0.2.8 {"const": 18446744073709551615}: 1.8446744073709552e+19 True
#   0.2.8 {"type": "number", "minimum": 1e-07, "maximum": 2e-07}: 0.00000015 False
#   0.2.8 {"type": "number", "minimum": 1e-07, "maximum": 2e-07}:  True
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
    characters = ["</s>", *map(chr, range(32, 127))]
    tokens = xgrammar.TokenizerInfo(characters, stop_token_ids=[0])
    grammar = xgrammar.GrammarCompiler(tokens).compile_json_schema(schema, any_whitespace=False)
    matcher = xgrammar.GrammarMatcher(grammar)
    return (not text or matcher.accept_string(text)) and matcher.accept_token(0)


identifier = {"const": 2**64 - 1}
small = {"type": "number", "minimum": 1e-7, "maximum": 2e-7}
cases = [
    (identifier, "18446744073709551615", False),
    (identifier, "1.8446744073709552e+19", True),
    (small, "0.00000015", False),
    (small, "", True),
]
as_seen = True
for schema, text, result_seen in cases:
    result = allows(schema, text)
    print(version("xgrammar"), f"{json.dumps(schema)}: {text}", result)
    as_seen = as_seen and result == result_seen
if not as_seen:
    sys.exit("this has changed")
END
