"""Wires the HTTP API."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.conversations.wiring import Conversations
from gateway.files import files, uploads
from gateway.load import breakers, canaries, rate_limits, worker_registry
from gateway.requests import submission, withdrawals
from gateway.responses import references, response_operations
from gateway.retrieval.wiring import Retrieval
from gateway.routes import (
    admin_shares,
    browsers,
    completions,
    create,
    health,
    large_bodies,
    lists,
    models,
    responses,
    revocations,
    search,
    session,
    shares,
    table,
    vector_stores,
)
from gateway.routes import conversations as conversation_routes
from gateway.routes import files as file_routes
from tailrace import settings
from tailrace.delivery import delivery
from tailrace.delivery import revocations as revoked
from tailrace.log import interfaces
from tailrace.protocol import seals
from tailrace.store.redis_store import RedisStore
from tailrace.store.tickets import Tickets
from tailrace.web import access, drain, session_cookie, write_deadline


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that handlers need.

    Attributes:
        retrieval: None: this deployment has no vector stores.
        seal_keys: None: nothing is sealed.
        tails: readers in addition to those of the delivery.
    """

    config: settings.GatewaySettings
    pools: settings.CurrentPools
    gate: access.Access
    submission: submission.Submission
    withdrawals: withdrawals.Withdrawals
    operations: response_operations.ResponseOperations
    references: references.References
    conversations: Conversations
    retrieval: Retrieval | None
    files: files.Files
    uploads: uploads.Uploads
    rates: rate_limits.RateLimiter
    delivery: delivery.Delivery
    writer: interfaces.RecordWriter
    revocations: revoked.Revocations
    sessions: session_cookie.SessionCookies
    tickets: Tickets
    redis: RedisStore
    workers: worker_registry.WorkerRegistry
    breakers: breakers.Breakers
    canaries: canaries.Canaries
    tails: Sequence[interfaces.TailReader]
    draining: drain.Draining
    checks: write_deadline.DeadlineChecks
    seal_keys: seals.Keys | None
    version: str


def table_of(parts: Parts) -> table.Table:
    """The table of routes with these parts."""
    gate, deliver, rates = parts.gate, parts.delivery, parts.rates
    large, conversations, retrieval = (
        large_bodies.LargeBodies(),
        parts.conversations,
        parts.retrieval,
    )
    chats = completions.CompletionRoutes(gate, deliver, parts.operations)
    stores = None
    if retrieval is not None:
        stores = vector_stores.VectorStoreRoutes(
            *(gate, retrieval.stores, retrieval.passages, parts.uploads),
            *(retrieval.embedder, retrieval.searcher, rates, deliver.kept),
        )
    return table.Table(
        create=create.CreateRoutes(
            parts.config,
            parts.pools,
            gate,
            parts.submission,
            parts.withdrawals,
            parts.draining,
            parts.checks,
            deliver.kept,
            large,
            parts.files,
            parts.seal_keys,
        ),
        responses=responses.ResponseRoutes(gate, parts.operations),
        completions=chats,
        lists=lists.ListRoutes(gate, deliver.archived, parts.writer, chats),
        conversations=conversation_routes.ConversationRoutes(
            *(
                gate,
                conversations.registry,
                conversations.items,
                conversations.turns,
                conversations.erasure,
            ),
            *(parts.references, parts.files, rates, deliver.kept),
        ),
        searches=search.SearchRoutes(gate, deliver.archived, rates),
        shares=shares.ShareRoutes(gate, conversations.links, rates),
        admin_shares=admin_shares.AdminShareRoutes(gate, conversations.links),
        files=file_routes.FileRoutes(gate, deliver.kept, large, parts.uploads),
        vector_stores=stores,
        models=models.ModelRoutes(gate, parts.pools, int(time.time())),
        sessions=session.SessionRoutes(gate, parts.sessions),
        browsers=browsers.BrowserRoutes(
            *(parts.config, parts.pools, gate, parts.tickets, parts.workers, parts.version)
        ),
        revocations=revocations.RevocationRoutes(gate, parts.revocations, parts.writer),
        health=health.HealthRoutes(
            *(parts.submission, gate, parts.redis, parts.workers, parts.breakers, parts.canaries),
            parts.tails,
        ),
    )
