"""Reasoning effort and verbosity: `reasoning`, `reasoning_effort`, `verbosity` (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from gateway.parsing.json_body import Body, object_field
from tailrace.protocol import errors

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
# The model's own words, as OpenAI's "detailed" may be. Nothing shortens them, so "concise" is not
# offered.
SUMMARIES: Final = ("auto", "detailed")
_TEMPLATE: Final = "chat_template_kwargs"
_SWITCHES: Final = ("enable_thinking", "thinking")  # as templates call them
VERBOSITIES: Final = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The requested reasoning. None: the model's default. `param`: the field of the effort."""

    effort: str | None = None
    summary: str | None = None
    param: str = field(default="reasoning.effort", compare=False)

    @property
    def echo(self) -> dict[str, Any]:
        """The form in the Response object."""
        return {"effort": self.effort, "summary": self.summary}

    @property
    def engine(self) -> dict[str, Any]:
        """The form for workers: given members only."""
        return {name: value for name, value in self.echo.items() if value is not None}


def of_responses(body: Body) -> Reasoning | None:
    """The field `reasoning`; None if it has no members.

    Raises:
        errors.ApiError: 400 naming the member.
    """
    value = object_field(body, "reasoning")
    summary = _one_of(value.get("summary"), "reasoning.summary", SUMMARIES)
    older = _one_of(value.get("generate_summary"), "reasoning.generate_summary", SUMMARIES)
    effort, param = _effort(body, value.get("effort"), "reasoning.effort")
    return _or_none(Reasoning(effort, summary or older, param))


def of_chat(body: Body) -> Reasoning | None:
    """`reasoning_effort`. Like `of_responses`."""
    effort, param = _effort(body, body.get("reasoning_effort"), "reasoning_effort")
    return _or_none(Reasoning(effort, param=param))


def _effort(body: Body, value: Any, param: str) -> tuple[str | None, str]:
    """The effort in a field, or in vLLM's template variables; and its field."""
    effort = _one_of(value, param, EFFORTS)
    thinks = _thinks(object_field(body, _TEMPLATE))
    return ("none", _TEMPLATE) if effort is None and thinks is False else (effort, param)


def _thinks(variables: Body) -> bool | None:
    """The template variable that switches thinking on or off; None if not given."""
    thinking = None
    for name, value in variables.items():
        if name not in _SWITCHES:
            raise errors.unsupported_parameter(f"{_TEMPLATE}.{name}")
        if value is not None and not isinstance(value, bool):
            raise errors.invalid_type(f"{_TEMPLATE}.{name}", "a boolean")
        thinking = value if value is not None else thinking
    return thinking


def verbosity(value: Any, where: str) -> str | None:
    """The requested verbosity; None if not given. Raises like `of_responses`."""
    return _one_of(value, where, VERBOSITIES)


def _or_none(reasoning: Reasoning) -> Reasoning | None:
    return reasoning if reasoning.engine else None


def _one_of(value: Any, where: str, words: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise errors.invalid_type(where, "a string")
    if value not in words:
        raise errors.invalid_value(where, f"Invalid '{where}': expected one of {', '.join(words)}.")
    return value
