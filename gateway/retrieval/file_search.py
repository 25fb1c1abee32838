"""Searches the vector stores of an owner, for the search route and for the tool `file_search`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from gateway.files import passage_prompt
from gateway.parsing import command, file_text, searches
from gateway.parsing.file_search import FileSearch
from gateway.requests import search_port
from gateway.retrieval import vector_stores
from gateway.retrieval.embedder import Embedder
from gateway.retrieval.passages import Passages
from tailrace import log
from tailrace.auth.principal import Principal
from tailrace.protocol import errors
from tailrace.protocol import vector_stores as acts
from tailrace.web import access


class Searcher:
    """Searches vector stores. The database itself filters by owner."""

    def __init__(
        self,
        stores: vector_stores.VectorStores,
        passages: Passages,
        embedder: Embedder,
        clock: Callable[[], float],
    ) -> None:
        self._stores = stores
        self._passages = passages
        self._embedder = embedder
        self._clock = clock

    async def hits(
        self, stores: Sequence[acts.Store], search: searches.Search, principal: Principal
    ) -> list[passage_prompt.Hit]:
        """The best passages of all queries in all stores, each with its best score, best first. A
        score is the cosine of both vectors, at least 0.

        Raises:
            errors.ApiError: a store has expired; 503, the database is down; and like
                `Embedder.embed`.
            log.LogUnavailable, log.AppendFailed
        """
        for store in stores:
            if store.expired(self._clock()):
                raise errors.vector_store_expired(store.id)
        files = {store.id: _files_to_search(store, search) for store in stores}
        best: dict[tuple[str, int], tuple[float, str, acts.File]] = {}
        vectors = (
            await self._embedder.embed(principal, search.queries) if any(files.values()) else []
        )
        for store in stores:
            among = files[store.id]
            for vector in vectors if among else ():
                matches = await self._passages.search(
                    store, list(among), self._embedder.model, vector, search.limit
                )
                for hit in matches:
                    place = (hit.attachment, hit.number)
                    score = min(1.0, max(0.0, hit.score))
                    if score >= search.least and (place not in best or best[place][0] < score):
                        best[place] = (score, hit.text, among[hit.attachment])
        for store in stores:
            await self._stores.record_use(store)
        ranking = sorted(best.items(), key=lambda each: (-each[1][0], each[0]))[: search.limit]
        return [
            passage_prompt.Hit(file.act.file, file.act.filename, score, text, file.attributes)
            for _, (score, text, file) in ranking
        ]

    async def prompt(
        self,
        create: command.Create,
        tool: FileSearch,
        messages: Sequence[dict[str, Any]],
        principal: Principal,
    ) -> passage_prompt.PassagePrompt | None:
        """Implements `SearchPort.prompt`."""
        question = passage_prompt.question(messages)
        if question is None:
            return None
        try:
            async with asyncio.timeout(search_port.DEADLINE_S):
                owner = access.owner_of(principal)
                stores = [await self._stores.find(name, owner) for name in tool.stores]
                question = question[: self._longest]
                hits = await self.hits(stores, tool.for_question(question), principal)
        except (log.LogUnavailable, log.HistoryLost, log.AppendFailed) as error:
            raise errors.unavailable("The log cannot be read right now.") from error
        except TimeoutError as error:
            raise errors.unavailable("The search in files took too long.") from error
        return passage_prompt.with_passages(create, tool, messages, [question], hits)

    @property
    def _longest(self) -> int:
        """Maximum characters of a question: those of a passage that fits the embedding model."""
        tokens = max(1, self._embedder.longest * 3 // 4)
        return min(searches.MAX_QUERY_CHARS, tokens * file_text.CHARS_PER_TOKEN)


def _files_to_search(store: acts.Store, search: searches.Search) -> dict[str, acts.File]:
    """The files to search, by attachment."""
    return {
        each.act.attachment: each
        for each in store.present.values()
        if each.status == "completed" and (search.filter is None or search.filter(each.attributes))
    }
