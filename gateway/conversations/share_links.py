"""Links that show a conversation to anybody who has them, up to where it was when they were made.

A link shows what its token names and the log still has: its owner may revoke it, delete the
conversation, or delete a response out of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.conversations import items as conversation_items
from gateway.conversations.conversations import Conversations
from tailrace.delivery import archived
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, ids, records, share_tokens

MAX_LINKS: Final = 100  # of one conversation that have not expired
# Of one page. A text may be long, so that its characters count too.
MAX_NODES: Final = 50
MAX_CHARS: Final = 1_000_000

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A part of what a link shows. `next`: the place of the next one; None: there is no more."""

    share: tree.Share
    items: list[Json]
    next: int | None


class ShareLinks:
    """Makes, revokes and reads links."""

    def __init__(
        self,
        conversations: Conversations,
        items: conversation_items.Items,
        archive: archived.Archived,
        tokens: share_tokens.Tokens | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tokens`: None where the deployment has no key."""
        self._conversations = conversations
        self._items = items
        self._archive = archive
        self._tokens = tokens
        self._clock = clock

    def check(self, path: str) -> share_tokens.Tokens:
        """What seals tokens. Raises ApiError: the deployment has no key."""
        if self._tokens is None:
            raise errors.not_offered(
                path, "Links are sealed with a session key, and this deployment has none."
            )
        return self._tokens

    async def create(self, name: str, owner: records.Owner, seconds: int) -> tuple[str, tree.Share]:
        """A new link to the owner's conversation as it is now, for so long. Returns its id, too.

        Raises:
            errors.ApiError: 400, nothing was said, or there are as many links as there may be;
                and like `Conversations.find`.
            log.LogUnavailable
            log.AppendFailed: whether there is such a link is unknown.
        """
        # The archive is asked even where the conversation is remembered: one of the version before,
        # which has no place for links, would pass over this one.
        await self._archive.conversation(name, tree.partition(owner))
        conversation = await self._conversations.find(name, owner)
        if conversation.head is None:
            raise errors.invalid_value(
                "conversation_id", "Nothing was said in this conversation yet."
            )
        now = int(self._clock())
        expired = [each for each, share in conversation.shares.items() if share.expires_at <= now]
        if len(conversation.shares) - len(expired) >= MAX_LINKS:
            raise errors.invalid_value(
                "conversation_id",
                f"This conversation has {MAX_LINKS} links, which is the most. Revoke some of them.",
            )
        share = ids.mint(
            ids.parse(name, tree.PARTITIONS, tree.PREFIX),
            os.urandom(ids.RANDOM_BYTES),
            tree.SHARE_PREFIX,
        )
        end = await self._conversations.append(
            *(tree.Unshared(name, owner, each) for each in expired),
            tree.Shared(
                name, owner, share, conversation.head, now, now + seconds, conversation.title
            ),
        )
        conversation = await self._conversations.find(name, owner, end=end)
        return share, conversation.shares[share]

    async def live(self, name: str, owner: records.Owner) -> dict[str, tree.Share]:
        """The links to the owner's conversation that show it, the newest first. Raises like
        `create`."""
        conversation = await self._conversations.find(name, owner)
        now = self._clock()
        live = [each for each in conversation.shares.items() if each[1].expires_at > now]
        return dict(reversed(live))

    async def revoke(self, name: str, owner: records.Owner, share: str) -> None:
        """Have a link show nothing any more. Raises like `create`; 404, there is none of this
        id."""
        conversation = await self._conversations.find(name, owner)
        if share not in conversation.shares:
            raise errors.share_not_found()
        await self._conversations.append(tree.Unshared(name, owner, share))

    async def read(self, link: share_tokens.Link, start: int) -> Page:
        """What a link shows, from its node number `start` on.

        Raises:
            errors.ApiError: 404, it shows nothing (any more); 503.
            log.LogUnavailable
        """
        if link.expires_at <= self._clock():
            raise errors.share_not_found()
        try:
            conversation = await self._conversations.find(
                link.conversation, link.owner, contents=True
            )
        except errors.ApiError as error:
            raise (errors.share_not_found() if error.status == 404 else error) from error
        share = conversation.shares.get(link.share)
        if share is None or (share.head, share.expires_at) != (link.head, link.expires_at):
            raise errors.share_not_found()
        path = conversation.path_to(share.head)
        rows: list[Json] = []
        at, characters = start, 0
        for node in path[start : start + MAX_NODES]:
            items = await self._items.of_node(conversation, node, images_whole=False)
            new = [row for item in items if (row := _public_text(item)) is not None]
            if new and self._continues(conversation, node, items):
                new[0]["continues"] = True
            rows += new
            at, characters = at + 1, characters + sum(len(row["text"]) for row in new)
            if characters >= MAX_CHARS:
                break
        return Page(share, rows, at if at < len(path) else None)

    def _continues(self, conversation: tree.Conversation, node: str, items: list[Json]) -> bool:
        """Whether a turn was asked with nothing, so that its text goes on with that before it."""
        if not conversation.nodes[node].turn or any(map(_asks, items)):
            return False
        return all(self._items.node_of(conversation, item) != node for item in conversation.removed)


def _public_text(item: Json) -> Json | None:
    """What an item shows to anybody: text, and how many images and files it has; None: nothing."""
    if item["type"] != "message" or item["role"] not in ("user", "assistant"):
        return None
    kinds = ["input_file" if "filename" in part else part["type"] for part in item["content"]]
    texts = [
        part["text"] for part, kind in zip(item["content"], kinds, strict=True) if kind in _TEXTS
    ]
    counts = {"images": kinds.count("input_image"), "files": kinds.count("input_file")}
    attachments = {name: count for name, count in counts.items() if count}
    text = "\n".join(texts)
    return {"role": item["role"], "text": text, **attachments} if text or attachments else None


_TEXTS: Final = ("input_text", "output_text")


def _asks(item: Json) -> bool:
    """Whether a turn was asked with it, rather than answered."""
    return item.get("role") == "user" or item["type"].endswith("_output")
