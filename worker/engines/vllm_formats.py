"""The required format of an answer, in vLLM's form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.engines import base, vllm_schemas

BACKEND: Final = {
    # By name: by default vLLM uses the backend of its first structured request for all later ones.
    # Two workers could then have different grammars for one response.
    "backend": "xgrammar",
    # A model may write newlines between two members until the limit of tokens.
    "disable_any_whitespace": True,
}

# A character of a text of bounded length in xgrammar: it includes control characters, which are not
# valid in JSON. And the correct form.
_LOOSE: Final = r"[^\"\\\r\n]"
_CHARACTER: Final = r"[^\"\\\0-\x1f]"
# An escape in a name that is not declared, where it may still become a declared one. Only there and
# in the rule of all strings.
_ESCAPE: Final = r' | ("\\" basic_escape basic_string_sub)'
_STRINGS: Final = "basic_string_sub"


def repair(schema: Any, **more: Any) -> str | None:
    """The right grammar of a JSON schema; None if xgrammar's own is. `more`: of
    `xgrammar.Grammar.from_json_schema`."""
    import xgrammar

    restated = vllm_schemas.restate(schema)
    try:
        grammar = str(xgrammar.Grammar.from_json_schema(restated, **more))
    except RuntimeError:
        return None  # vLLM refuses it with a reason
    rules = grammar.replace(_LOOSE, _CHARACTER).split("\n")
    repaired = "\n".join(
        each if each.startswith(_STRINGS) else each.replace(_ESCAPE, "") for each in rules
    )
    return None if repaired == grammar and restated == schema else repaired


def constraint(form: dict[str, Any]) -> Any:
    """vLLM's `StructuredOutputsParams` for a request's `format`."""
    from vllm.sampling_params import StructuredOutputsParams

    match form["type"]:
        case "json_schema":
            if grammar := repair(form["schema"], any_whitespace=False):
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


def limit_whitespace(params: Any, grammars: Mapping[str, str] | None = None) -> Any:
    """The same constraint without endless whitespace (`BACKEND` does not hold within structural
    tags), and with grammars of custom tools instead of the schemas with their titles.

    Raises:
        Refused: a grammar has no place in it.
    """
    titles = dict(grammars or {})
    if params is None or params.structural_tag is None:
        if titles:
            raise _no_grammars()
        return params
    from vllm.sampling_params import StructuredOutputsParams

    tag = json.loads(params.structural_tag)
    used_titles: set[str] = set()
    _limit_node(tag, titles, used_titles)
    if used_titles != set(titles):
        raise _no_grammars()
    return StructuredOutputsParams(structural_tag=json.dumps(tag))


def _no_grammars() -> base.Refused:
    message = "The model does not support custom tools with a grammar in `tools` here."
    return base.Refused("unsupported_parameter", message, "tools")


def _limit_node(node: Any, grammars: Mapping[str, str], used_titles: set[str]) -> None:
    if isinstance(node, list):
        for one in node:
            _limit_node(one, grammars, used_titles)
    elif isinstance(node, dict):
        if node.get("type") != "json_schema":
            for one in node.values():
                _limit_node(one, grammars, used_titles)
            return
        schema = node.get("json_schema")
        title = str(schema.get("title")) if isinstance(schema, dict) else ""
        if title in grammars and node.get("style", "json") == "json":
            node.clear()
            node |= {"type": "grammar", "grammar": grammars[title]}
            used_titles.add(title)
        elif (
            isinstance(schema, dict)
            and node.get("style", "json") == "json"
            and (grammar := repair(schema, max_whitespace_cnt=1))
        ):
            node.clear()
            node |= {"type": "grammar", "grammar": grammar}
        else:
            node["max_whitespace_cnt"] = 1
