"""What a request needs of a worker."""

from __future__ import annotations

from typing import Any

from tailrace.protocol import features, records
from tests.support import cases

FUNCTION = {"type": "function", "function": {"name": "f"}}
CUSTOM = {"type": "custom", "custom": {"name": "g"}}


def request(**more: Any) -> records.Request:
    fields: dict[str, Any] = {"sampling": records.Sampling(1), **more}
    return records.Request(
        "resp_x",
        records.Owner("i", "s"),
        "m",
        [{"role": "user", "content": "q"}],
        echo={},
        **fields,
    )


@cases.each(
    ("asked", "needs"),
    [
        ({}, []),
        ({"reasoning": {"effort": "low"}}, [("effort", "reasoning.effort")]),
        ({"reasoning": {"effort": "none", "summary": "auto"}}, []),
        ({"tools": [FUNCTION]}, [("tools", "tools")]),
        ({"tools": [FUNCTION, CUSTOM]}, [("tools", "tools"), ("custom_tools", "tools")]),
        ({"format": {"type": "json_object"}}, [("formats", "format")]),
        ({"sampling": records.Sampling(1, logprobs=0)}, [("logprobs", "logprobs")]),
        ({"embed": records.Embed(["a"])}, [("embeddings", "model")]),
        (
            {"embed": records.Embed(["a"], 4)},
            [("embeddings", "model"), ("dimensions", "dimensions")],
        ),
    ],
)
def test_what_a_request_needs(asked: dict[str, Any], needs: list[tuple[str, str]]) -> None:
    assert features.needs_of(request(**asked)) == needs
    assert {need.feature for need in features.needs_of(request(**asked))} <= features.ALL


@cases.each(
    ("told", "generates"),
    [([], True), (["tools"], True), (["embeddings"], False), (["embeddings", "text"], True)],
)
def test_who_embeds_generates_only_if_it_says_so(told: list[str], generates: bool) -> None:
    """Workers that know no embeddings do not tell that they generate text."""
    assert features.generates_text(told) == generates
