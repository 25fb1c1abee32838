"""What an answer must look like, as vLLM takes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.engines import base

BACKEND: Final = {
    # By name: left to itself vLLM takes the one that its first structured request needs, for all
    # later ones. Two workers could then hold different grammars for one response.
    "backend": "xgrammar",
    # A model may write newlines between two members until the limit of tokens.
    "disable_any_whitespace": True,
}

# A character of a text of bounded length as xgrammar writes it: also control characters, with which
# an answer is no JSON. And as it must be.
_LOOSE: Final = r"[^\"\\\r\n]"
_CHARACTER: Final = r"[^\"\\\0-\x1f]"


def repaired(schema: Any, **more: Any) -> str | None:
    """The grammar of a JSON schema in which bounded texts hold no control characters; None where
    xgrammar's own has none that could. `more`: of `xgrammar.Grammar.from_json_schema`."""
    import xgrammar

    try:
        grammar = str(xgrammar.Grammar.from_json_schema(schema, **more))
    except RuntimeError:
        return None  # vLLM refuses it, and says why
    return grammar.replace(_LOOSE, _CHARACTER) if _LOOSE in grammar else None


def constraint(form: dict[str, Any]) -> Any:
    """vLLM's `StructuredOutputsParams` for a request's `format`."""
    from vllm.sampling_params import StructuredOutputsParams

    match form["type"]:
        case "json_schema":
            if grammar := repaired(form["schema"], any_whitespace=False):
                return StructuredOutputsParams(grammar=grammar)
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


def bounded(found: Any, grammars: Mapping[str, str] | None = None) -> Any:
    """The same constraint without endless whitespace (`BACKEND` does not hold within structural
    tags), and with grammars of custom tools instead of the schemas with their titles.

    Raises:
        Refused: a grammar has no place in it.
    """
    wanted = dict(grammars or {})
    if found is None or found.structural_tag is None:
        if wanted:
            raise _no_grammars()
        return found
    from vllm.sampling_params import StructuredOutputsParams

    tag = json.loads(found.structural_tag)
    placed: set[str] = set()
    _bound(tag, wanted, placed)
    if placed != set(wanted):
        raise _no_grammars()
    return StructuredOutputsParams(structural_tag=json.dumps(tag))


def _no_grammars() -> base.Refused:
    message = "The model does not support custom tools with a grammar in `tools` here."
    return base.Refused("unsupported_parameter", message)


def _bound(node: Any, grammars: Mapping[str, str], placed: set[str]) -> None:
    if isinstance(node, list):
        for one in node:
            _bound(one, grammars, placed)
    elif isinstance(node, dict):
        if node.get("type") != "json_schema":
            for one in node.values():
                _bound(one, grammars, placed)
            return
        schema = node.get("json_schema")
        title = str(schema.get("title")) if isinstance(schema, dict) else ""
        if title in grammars and node.get("style", "json") == "json":
            node.clear()
            node |= {"type": "grammar", "grammar": grammars[title]}
            placed.add(title)
        elif (
            isinstance(schema, dict)
            and node.get("style", "json") == "json"
            and (grammar := repaired(schema, max_whitespace_cnt=1))
        ):
            node.clear()
            node |= {"type": "grammar", "grammar": grammar}
        else:
            node["max_whitespace_cnt"] = 1
