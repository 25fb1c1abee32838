"""The parts of conversations, wired."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conversations import conversations, erasure, items, share_links, turn_list
from gateway.responses import references, response_operations
from tailrace.delivery import delivery, log_clients
from tailrace.log import interfaces
from tailrace.protocol import share_tokens


@dataclass(frozen=True, slots=True)
class Conversations:
    """All of it."""

    known: conversations.Conversations
    items: items.Items
    turns: turn_list.ConversationTurns
    erasure: erasure.ConversationErasure
    links: share_links.ShareLinks


def conversations_of(
    tag: bytes,
    deliver: delivery.Delivery,
    reading: log_clients.LogClients,
    writer: interfaces.RecordWriter,
    operations: response_operations.ResponseOperations,
    resolved: references.References,
    tokens: share_tokens.Tokens | None,
) -> Conversations:
    """`tag`: of the log. `tokens`: of links; None: this deployment has no links."""
    known = conversations.Conversations(
        tag, deliver.archived, reading.offsets, reading.replays, writer
    )
    shown = items.Items(deliver, operations, resolved)
    return Conversations(
        known,
        shown,
        turn_list.ConversationTurns(deliver, operations, shown),
        erasure.ConversationErasure(known, deliver, operations),
        share_links.ShareLinks(known, shown, deliver.archived, tokens),
    )
