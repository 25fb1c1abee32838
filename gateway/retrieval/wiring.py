"""Wires the parts of retrieval."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from gateway.files.uploads import Uploads
from gateway.requests.submission import Submission
from gateway.requests.withdrawals import Withdrawals
from gateway.retrieval import embedder, file_search, ingestion, vector_stores
from gateway.retrieval.passages import Passages
from tailrace import settings
from tailrace.log import interfaces
from tailrace.vectors import contract

Clients = tuple[contract.VectorDatabase, interfaces.TailReader, interfaces.TailReader]
"""The vector database, and the tails of `llm.vector_stores` and `llm.passages`."""


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The parts of retrieval. `parts` run in the background; so does `ingestion`, until a drain
    begins."""

    stores: vector_stores.VectorStores
    passages: Passages
    embedder: embedder.Embedder
    searcher: file_search.Searcher
    ingestion: ingestion.Ingestion

    @property
    def parts(self) -> tuple[vector_stores.VectorStores, Passages]:
        return self.stores, self.passages


def retrieval_of(
    clients: Clients,
    config: settings.GatewaySettings,
    tag: bytes,
    offsets: interfaces.OffsetQueries,
    writer: interfaces.RecordWriter,
    pools: settings.CurrentPools,
    uploads: Uploads,
    withdrawals: Withdrawals,
    submission: Callable[[], Submission],
    clock: Callable[[], float],
) -> Retrieval:
    """`tag`: the log's tag. `submission`: for `embedder.Embedder`. `clock`: seconds since the
    epoch."""
    database, store_reader, passage_reader = clients
    stores = vector_stores.VectorStores(
        f"{config.name}/{os.urandom(4).hex()}", tag, store_reader, offsets, writer
    )
    passages = Passages(database, stores, passage_reader, offsets, writer)
    embed = embedder.Embedder(config.vectors_model, pools, submission, withdrawals)
    return Retrieval(
        stores,
        passages,
        embed,
        file_search.Searcher(stores, passages, embed, clock),
        ingestion.Ingestion(stores, passages, uploads, embed),
    )
