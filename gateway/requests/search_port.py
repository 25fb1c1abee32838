"""The interface of file search. `gateway.retrieval` implements it; it submits requests itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from gateway.files import passage_prompt
from gateway.parsing import command
from gateway.parsing.file_search import FileSearch
from tailrace.auth.principal import Principal

DEADLINE_S: Final = 30.0  # of one search; the question may wait for its embedding


class SearchPort(Protocol):
    """Searches the files that a request names."""

    async def prompt(
        self,
        create: command.Create,
        tool: FileSearch,
        messages: Sequence[dict[str, Any]],
        principal: Principal,
    ) -> passage_prompt.PassagePrompt | None:
        """The messages with passages for the last user message; None without a question.

        Raises:
            errors.ApiError: 404, the owner has no such store; 429 or 503, the question could not be
                embedded, or the log or the database does not answer in time. Nothing was written.
        """
