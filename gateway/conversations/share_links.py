"""Links that show a conversation, as it was at their creation, to anybody who has them.

A link shows the part of the conversation in its token that the log still has: its owner may revoke
it, delete the conversation, or delete a response of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.conversations import items as conversation_items
from gateway.conversations.conversations import Conversations
from tailrace.archive.archived import UnknownPlace
from tailrace.delivery import archived
from tailrace.protocol import conversations as tree
from tailrace.protocol import errors, ids, records, share_tokens

MAX_LINKS: Final = 100  # of one conversation that have not expired
# Bounds of one page. Characters count too, because a text may be long.
MAX_NODES: Final = 50
MAX_CHARS: Final = 1_000_000
PAGE: Final = 100  # conversations of an owner that are looked through at once

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a shared conversation. `next`: the start of the next page; None: this is the
    last."""

    share: tree.Share
    items: list[Json]
    next: int | None


class ShareLinks:
    """Creates, revokes and reads links."""

    def __init__(
        self,
        conversations: Conversations,
        items: conversation_items.Items,
        archive: archived.ArchiveQueries,
        tokens: share_tokens.Tokens | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`tokens`: None if the deployment has no key."""
        self._conversations = conversations
        self._items = items
        self._archive = archive
        self._tokens = tokens
        self._clock = clock

    def check(self, path: str) -> share_tokens.Tokens:
        """The object that seals tokens. Raises ApiError: the deployment has no key."""
        if self._tokens is None:
            raise errors.not_offered(
                path, "Links are sealed with a session key, and this deployment has none."
            )
        return self._tokens

    async def create(self, name: str, owner: records.Owner, seconds: int) -> tuple[str, tree.Share]:
        """Create a link to the owner's conversation as it is now, valid for `seconds`. Returns its
        id and the link.

        Raises:
            errors.ApiError: 400, the conversation is empty or has the maximum of links; and like
                `Conversations.find`.
            log.LogUnavailable
            log.AppendFailed: whether the link exists is unknown.
        """
        # Query the archive even if the conversation is cached: an archive of the former version
        # does not support links and would ignore this one.
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
        """The valid links to the owner's conversation, newest first. Raises like `create`."""
        conversation = await self._conversations.find(name, owner)
        now = self._clock()
        live = [each for each in conversation.shares.items() if each[1].expires_at > now]
        return dict(reversed(live))

    async def of_owner(self, owner: records.Owner) -> list[tuple[str, str, tree.Share]]:
        """The valid links to all conversations of an owner, with conversation and id. Raises like
        `create`."""
        now, after = self._clock(), None
        found: list[tuple[str, str, tree.Share]] = []
        while True:
            try:
                page = await self._archive.conversations(owner, after, PAGE)
            except UnknownPlace:  # it was deleted meanwhile
                found, after = [], None
                continue
            found += [
                (each.id, share, record)
                for each in page[:PAGE]
                for share, record in each.shares.items()
                if record.expires_at > now
            ]
            if len(page) <= PAGE:
                return found
            after = page[PAGE - 1].id

    async def end(self, owner: records.Owner, links: Sequence[tuple[str, str]]) -> None:
        """Revoke these links (conversation, id) of an owner. Raises like `create`."""
        await self._conversations.append(
            *(tree.Unshared(name, owner, share) for name, share in links)
        )

    async def revoke(self, name: str, owner: records.Owner, share: str) -> None:
        """Revoke a link. Raises like `create`; 404, there is no link with this id."""
        conversation = await self._conversations.find(name, owner)
        if share not in conversation.shares:
            raise errors.share_not_found()
        await self._conversations.append(tree.Unshared(name, owner, share))

    async def read(self, link: share_tokens.Link, start: int) -> Page:
        """A page of the shared conversation, from node number `start` on.

        Raises:
            errors.ApiError: 404, the link is not valid; 503.
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
        """Whether a turn has no input, so that its text continues the text before it."""
        if not conversation.nodes[node].turn or any(map(_asks, items)):
            return False
        return all(self._items.node_of(conversation, item) != node for item in conversation.removed)


def _public_text(item: Json) -> Json | None:
    """The public part of an item: text, and the number of images and files; None: nothing."""
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
    """Whether an item is input of a turn, not output."""
    return item.get("role") == "user" or item["type"].endswith("_output")
