"""What a request needs of a search in files. `gateway.retrieval` has it, which submits requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from gateway.files import passage_prompt
from gateway.parsing import command
from gateway.parsing.file_search import FileSearch
from tailrace.auth.principal import Principal

DEADLINE_S: Final = 30.0  # of a search for a request; the question may wait to be embedded


class SearchPort(Protocol):
    """Searches the files that a request names."""

    async def prompt(
        self,
        create: command.Create,
        tool: FileSearch,
        messages: Sequence[dict[str, Any]],
        principal: Principal,
    ) -> passage_prompt.PassagePrompt | None:
        """The messages with passages that were found for the last one of a user; None where there
        is no question in them.

        Raises:
            errors.ApiError: 404, a store is not the owner's, or there is none; 429 or 503, the
                question could not be embedded, or the log or the database does not answer in time.
                Nothing of a request was written.
        """
