"""What an answer must look like, as vLLM takes it."""

from __future__ import annotations

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
