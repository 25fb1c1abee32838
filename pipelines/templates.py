"""Templates and expressions of a pipeline, in a sandbox (pure).

Who writes a pipeline's file may not read the runner's memory by it, and a record may not stop the
runner: what it makes of a template is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import jinja2
import jinja2.sandbox

from pipelines import definition

MAX_PROMPT: Final = 400_000  # characters

_environment: Final = jinja2.sandbox.ImmutableSandboxedEnvironment(
    undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True
)


class Unusable(Exception):
    """A record does not go with a template. The text is for its dead letter."""


class Template:
    """A compiled template."""

    def __init__(self, text: str, where: str) -> None:
        """`where`: names it in errors. Raises definition.Invalid."""
        try:
            self._template = _environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise definition.Invalid(f"{where}, line {error.lineno}: {error.message}") from error

    def text(self, values: Mapping[str, Any]) -> str:
        """The text for these values. Raises Unusable."""
        parts, length = [], 0
        try:
            for part in self._template.generate(values):
                parts.append(part)
                length += len(part)
                if length > MAX_PROMPT:
                    raise Unusable(f"the prompt has more than {MAX_PROMPT} characters")
        except Unusable:
            raise
        except Exception as error:  # a template may raise whatever its record makes it raise
            raise Unusable(f"{type(error).__name__}: {error}"[:500]) from error
        return "".join(parts)


class Expression:
    """A compiled expression."""

    def __init__(self, text: str, where: str) -> None:
        """`where`: names it in errors. Raises definition.Invalid."""
        try:
            self._value = _environment.compile_expression(text, undefined_to_none=False)
        except jinja2.TemplateSyntaxError as error:
            raise definition.Invalid(f"{where}: {error.message}") from error

    def value(self, values: Mapping[str, Any]) -> Any:
        """Its value. Raises Unusable."""
        try:
            found = self._value(**values)
            if isinstance(found, jinja2.Undefined):
                str(found)  # strict: raises, and says what is undefined
        except Exception as error:  # as above
            raise Unusable(f"{type(error).__name__}: {error}"[:500]) from error
        return found
