"""Wires the parts of conversations."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.conversations import conversations, erasure, items, share_links, turn_list
from gateway.responses import references, response_operations
from tailrace.delivery import delivery, log_clients
from tailrace.log import interfaces
from tailrace.protocol import share_tokens


@dataclass(frozen=True, slots=True)
class Conversations:
    """The parts of conversations."""

    registry: conversations.Conversations
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
    refs: references.References,
    tokens: share_tokens.Tokens | None,
) -> Conversations:
    """`tag`: the log's tag. `tokens`: for links; None: this deployment has no links."""
    registry = conversations.Conversations(
        tag, deliver.archived, reading.offsets, reading.replays, writer
    )
    item_reader = items.Items(deliver, operations, refs)
    return Conversations(
        registry,
        item_reader,
        turn_list.ConversationTurns(deliver, operations, item_reader),
        erasure.ConversationErasure(registry, deliver, operations),
        share_links.ShareLinks(registry, item_reader, deliver.archived, tokens),
    )
