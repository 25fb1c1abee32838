"""The model's chat template, as the engine asks for prompts."""

from __future__ import annotations

from typing import Any

from tailrace.prompts import chat_template
from tailrace.protocol import records
from worker.engines import base


class Template(chat_template.Template):
    """The shared template, whose refusals are the engine's."""

    def render(self, request: records.Request) -> list[int]:
        """The prompt's ids.

        Raises:
            Refused: the template does not take the messages, or what is asked of the reasoning.
        """
        try:
            return super().render(request)
        except chat_template.Unrenderable as error:
            raise base.Refused(error.code, error.message) from error

    def variables(self, request: records.Request) -> dict[str, Any]:
        """What `reasoning.effort` means to this template.

        Raises:
            Refused: nothing, and it asks for some.
        """
        try:
            return super().variables(request)
        except chat_template.Unrenderable as error:
            raise base.Refused(error.code, error.message) from error
