"""The HTTP API: maps paths and methods to handlers.

Handlers take the raw request, so that clients never see an error format of the framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import fastapi
from starlette.requests import Request
from starlette.responses import Response

from gateway.routes import (
    admin_shares,
    browsers,
    completions,
    conversations,
    create,
    files,
    health,
    lists,
    models,
    responses,
    revocations,
    search,
    session,
    shares,
    vector_stores,
)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Table:
    """The handlers of one gateway.

    Attributes:
        vector_stores: None where the deployment has none.
    """

    create: create.CreateRoutes
    responses: responses.ResponseRoutes
    completions: completions.CompletionRoutes
    lists: lists.ListRoutes
    conversations: conversations.ConversationRoutes
    searches: search.SearchRoutes
    shares: shares.ShareRoutes
    admin_shares: admin_shares.AdminShareRoutes
    files: files.FileRoutes
    vector_stores: vector_stores.VectorStoreRoutes | None
    models: models.ModelRoutes
    sessions: session.SessionRoutes
    browsers: browsers.BrowserRoutes
    revocations: revocations.RevocationRoutes
    health: health.HealthRoutes

    def router(self) -> fastapi.APIRouter:
        router = fastapi.APIRouter()
        for method, path, handler in (
            ("POST", "/v1/responses", self.create.create),
            ("POST", "/v1/responses/input_tokens", self.create.count),
            ("POST", "/v1/responses/compact", self.create.compact),
            ("POST", "/v1/responses/{response_id}/cancel", self.responses.cancel),
            ("DELETE", "/v1/responses/{response_id}", self.responses.delete),
            ("GET", "/v1/responses/{response_id}/input_items", self.responses.input_items),
            ("GET", "/v1/responses", self.lists.responses),
            ("POST", "/v1/chat/completions", self.create.chat),
            ("GET", "/v1/chat/completions", self.lists.chats),
            ("POST", "/v1/chat/completions/{completion_id}", self.lists.update),
            ("POST", "/v1/completions", self.create.text),
            ("POST", "/v1/embeddings", self.create.embeddings),
            ("GET", "/v1/chat/completions/{completion_id}", self.completions.show),
            ("DELETE", "/v1/chat/completions/{completion_id}", self.completions.delete),
            ("GET", "/v1/chat/completions/{completion_id}/messages", self.completions.messages),
            ("POST", "/v1/files", self.files.create),
            ("GET", "/v1/files", self.files.list_all),
            ("GET", "/v1/files/{file_id}", self.files.show),
            ("GET", "/v1/files/{file_id}/content", self.files.content),
            ("DELETE", "/v1/files/{file_id}", self.files.delete),
            *self._of_conversations(),
            *self._of_shares(),
            *self._of_vector_stores(),
            ("GET", "/v1/models", self.models.list_all),
            ("GET", "/v1/models/{model:path}", self.models.show),
            ("POST", "/v1/tickets", self.browsers.ticket),
            ("POST", "/v1/session", self.sessions.begin),
            ("GET", "/v1/session", self.sessions.show),
            ("DELETE", "/v1/session", self.sessions.end),
            ("POST", "/v1/admin/revocations", self.revocations.create),
            ("GET", "/v1/admin/revocations", self.revocations.list_all),
            ("DELETE", "/v1/admin/revocations/{revocation_id}", self.revocations.lift),
            ("GET", "/config.json", self.browsers.public_config),
            ("GET", "/dev/credential", self.browsers.dev_credential),
            ("GET", "/health", self.health.health),
            ("GET", "/ready", self.health.ready),
        ):
            router.add_api_route(path, handler, methods=[method], response_model=None)
        return router

    def _of_conversations(self) -> list[tuple[str, str, Handler]]:
        routes, one = self.conversations, "/v1/conversations/{conversation_id}"
        return [
            ("POST", "/v1/conversations", routes.create),
            ("GET", "/v1/conversations", routes.list_all),
            ("GET", "/v1/conversations/search", self.searches.search),  # before an id
            ("GET", one, routes.show),
            ("POST", one, routes.change),
            ("DELETE", one, routes.delete),
            ("GET", f"{one}/nodes", routes.nodes),
            ("GET", f"{one}/turns", routes.turns),
            ("GET", f"{one}/items", routes.items),
            ("POST", f"{one}/items", routes.add),
            ("GET", f"{one}/items/{{item_id}}", routes.item),
            ("DELETE", f"{one}/items/{{item_id}}", routes.remove),
        ]

    def _of_shares(self) -> list[tuple[str, str, Handler]]:
        routes, one = self.shares, "/v1/conversations/{conversation_id}"
        return [
            ("POST", f"{one}/share", routes.create),
            ("GET", f"{one}/shares", routes.list_all),
            ("DELETE", f"{one}/shares/{{share_id}}", routes.revoke),
            ("GET", "/v1/shared/{token:path}", routes.show),
            ("GET", "/v1/admin/shares", self.admin_shares.list_all),
            ("DELETE", "/v1/admin/shares", self.admin_shares.end_all),
            ("DELETE", "/v1/admin/shares/{share_id}", self.admin_shares.end),
        ]

    def _of_vector_stores(self) -> list[tuple[str, str, Handler]]:
        routes, one = self.vector_stores, "/v1/vector_stores/{store_id}"
        if routes is None:
            return []  # `not_offered` says so
        file, batch = f"{one}/files/{{file_id}}", f"{one}/file_batches/{{batch_id}}"
        return [
            ("POST", "/v1/vector_stores", routes.create),
            ("GET", "/v1/vector_stores", routes.list_all),
            ("DELETE", "/v1/vector_stores", routes.delete_all),
            ("GET", one, routes.show),
            ("POST", one, routes.change),
            ("DELETE", one, routes.delete),
            ("POST", f"{one}/search", routes.search),
            ("POST", f"{one}/files", routes.attach),
            ("GET", f"{one}/files", routes.files),
            ("GET", file, routes.file),
            ("POST", file, routes.describe),
            ("DELETE", file, routes.detach),
            ("GET", f"{file}/content", routes.content),
            ("POST", f"{one}/file_batches", routes.attach_batch),
            ("GET", batch, routes.batch),
            ("POST", f"{batch}/cancel", routes.cancel_batch),
            ("GET", f"{batch}/files", routes.batch_files),
        ]
