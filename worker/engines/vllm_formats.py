"""What an answer must look like, as vLLM takes it."""

from __future__ import annotations

import json
from typing import Any, Final

BACKEND: Final = {
    # By name: left to itself vLLM takes the one that its first structured request needs, for all
    # later ones. Two workers could then hold different grammars for one response.
    "backend": "xgrammar",
    # A model may write newlines between two members until the limit of tokens.
    "disable_any_whitespace": True,
}


def constraint(form: dict[str, Any]) -> Any:
    """vLLM's `StructuredOutputsParams` for a request's `format`."""
    from vllm.sampling_params import StructuredOutputsParams

    match form["type"]:
        case "json_schema":
            return StructuredOutputsParams(json=form["schema"])
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "regex":
            return StructuredOutputsParams(regex=form["pattern"])
        case "choice":
            return StructuredOutputsParams(choice=list(form["choices"]))
        case "grammar":
            return StructuredOutputsParams(grammar=form["definition"])
        case other:
            raise ValueError(f"no format is called {other!r}")


def bounded(found: Any) -> Any:
    """The same constraint without endless whitespace: `BACKEND` does not hold within structural
    tags."""
    if found is None or found.structural_tag is None:
        return found
    from vllm.sampling_params import StructuredOutputsParams

    tag = json.loads(found.structural_tag)
    _bound(tag)
    return StructuredOutputsParams(structural_tag=json.dumps(tag))


def _bound(node: Any) -> None:
    if isinstance(node, list):
        for one in node:
            _bound(one)
    elif isinstance(node, dict):
        if node.get("type") == "json_schema":
            node["max_whitespace_cnt"] = 1
            return
        for one in node.values():
            _bound(one)
