"""Links over a log in memory: what they show, and when they show nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from gateway.conversations import share_links
from tailrace.archive import reader
from tailrace.protocol import conversations, errors, records, share_tokens
from tailrace.web import access
from tests.support import gateway_parts
from tests.support.gateway_parts import BOB
from tests.unit.gateway.requests import test_turns
from tests.unit.gateway.requests.test_turns import OWNER, ended, submit_turn

archive = test_turns.archive
TOKENS = share_tokens.Tokens([b"k" * 32])
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQ"
    "GAhKmMIQAAAABJRU5ErkJggg=="
)


class Sharing:
    """A gateway with one conversation, and a clock that a test sets."""

    def __init__(self, parts: gateway_parts.Parts, name: str) -> None:
        self.parts, self.name, self.now = parts, name, 1_000_000.0
        self.links = share_links.ShareLinks(
            *(parts.conversations, parts.items, parts.delivery.archived, TOKENS),
            lambda: self.now,
        )

    async def turn(self, question: str, *answer: str, **more: Any) -> str:
        rid = await submit_turn(self.parts, self.name, question, **more)
        self.parts.answer(rid, *answer)
        await ended(self.parts, rid)
        return rid

    async def add(self, *items: dict[str, Any]) -> None:
        conversation = await self.parts.conversations.find(self.name, OWNER)
        await self.parts.conversations.add_items(conversation, items)

    async def share(self, seconds: int = 60) -> share_tokens.Link:
        share, output = await self.links.create(self.name, OWNER, seconds)
        return share_tokens.Link(OWNER, self.name, share, output.head, output.expires_at)

    async def said(self, link: share_tokens.Link) -> list[tuple[str, str]]:
        page = await self.links.read(link, 0)
        assert page.next is None
        return [(each["role"], each["text"]) for each in page.items]


@contextlib.asynccontextmanager
async def sharing(archive: reader.Reader) -> AsyncIterator[Sharing]:
    async with test_turns.talking(archive) as (parts, name):
        yield Sharing(parts, name)


async def nothing(output: Sharing, link: share_tokens.Link) -> None:
    """The link is told as one that never was."""
    with pytest.raises(errors.ApiError) as error:
        await output.links.read(link, 0)
    assert error.value.args == errors.share_not_found().args


async def test_it_shows_the_path_that_was_chosen_and_nothing_that_came_later(
    archive: reader.Reader,
) -> None:
    async with sharing(archive) as sharing_test:
        first = await sharing_test.turn("one", "first")
        await sharing_test.turn("other", "beside it")
        await sharing_test.parts.conversations.append(
            conversations.Chosen(sharing_test.name, OWNER, first)
        )
        second = await sharing_test.turn("two", "sec", "ond")
        link = await sharing_test.share()
        dialogue = [
            *(("user", "one"), ("assistant", "first")),
            *(("user", "two"), ("assistant", "second")),
        ]
        assert await sharing_test.said(link) == dialogue
        await sharing_test.turn("three", "third")
        await sharing_test.parts.conversations.append(
            conversations.Chosen(sharing_test.name, OWNER, first),
            conversations.Changed(sharing_test.name, OWNER, title="named later"),
        )
        assert await sharing_test.said(link) == dialogue
        assert (await sharing_test.links.read(link, 0)).share.title == ""
        await sharing_test.parts.operations.delete(second, OWNER)
        assert await sharing_test.said(link) == dialogue[:2]


async def test_it_shows_texts_of_users_and_assistants_alone(archive: reader.Reader) -> None:
    async with sharing(archive) as sharing_test:
        rid = await submit_turn(
            sharing_test.parts, sharing_test.name, "and now?", instructions="secret"
        )
        request = next(r for r in sharing_test.parts.requests() if r.rid == rid)
        pieces: list[tuple[records.MarkKind, str]] = [("r", "secret"), ("m", "shown"), ("c", "{}")]
        gateway_parts.put_items(sharing_test.parts.broker, request, *pieces)
        await ended(sharing_test.parts, rid)
        await sharing_test.add(
            {"type": "message", "role": "system", "content": [part("Be brief.")]},
            {"type": "message", "role": "developer", "content": [part("secret")]},
            {
                "type": "message",
                "role": "user",
                "content": [part("look"), image(), part("at both"), image()],
            },
            {"type": "message", "role": "user", "content": [image()]},
            {
                "type": "message",
                "role": "user",
                "content": [{**part("File a.txt: secret"), "filename": "a.txt"}, part("read it")],
            },
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "secret"},
            {"type": "reasoning", "summary": [], "content": [], "encrypted_content": "secret"},
        )
        page = await sharing_test.links.read(await sharing_test.share(), 0)
        assert page.items == [
            {"role": "user", "text": "and now?"},
            {"role": "assistant", "text": "shown"},
            {"role": "user", "text": "look\nat both", "images": 2},
            {"role": "user", "text": "", "images": 1},
            {"role": "user", "text": "read it", "files": 1},
        ]


async def test_an_image_of_a_turn_is_counted_and_not_looked_up(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sharing(archive) as sharing_test:
        looking = [{"type": "message", "role": "user", "content": [part("look"), image()]}]
        asks = gateway_parts.create(looking, conversation=sharing_test.name)
        stream = await sharing_test.parts.submission.submit(asks, gateway_parts.ALICE)
        stream.release()
        sharing_test.parts.answer(stream.rid, "seen")
        await ended(sharing_test.parts, stream.rid)

        def looked_up(*_: Any) -> None:
            raise AssertionError("a file was looked up")

        monkeypatch.setattr(sharing_test.parts.files, "whole", looked_up)
        page = await sharing_test.links.read(await sharing_test.share(), 0)
        assert page.items[0] == {"role": "user", "text": "look", "images": 1}
        assert "base64" not in str(page.items)


async def test_a_text_that_continues_the_one_before_says_so(archive: reader.Reader) -> None:
    async with sharing(archive) as sharing_test:
        first = await submit_turn(sharing_test.parts, sharing_test.name, "one")
        sharing_test.parts.answer(first, "Once ", "upon", reason="length")
        await ended(sharing_test.parts, first)
        more = gateway_parts.create([], conversation=sharing_test.name)
        stream = await sharing_test.parts.submission.submit(more, gateway_parts.ALICE)
        stream.release()
        sharing_test.parts.answer(stream.rid, " a time")
        await ended(sharing_test.parts, stream.rid)
        await sharing_test.turn("two", "second")
        page = await sharing_test.links.read(await sharing_test.share(), 0)
        assert [(each["text"], "continues" in each) for each in page.items] == [
            *(("one", False), ("Once upon", False), (" a time", True)),
            *(("two", False), ("second", False)),
        ]


async def test_an_item_that_was_removed_is_not_shown(archive: reader.Reader) -> None:
    async with sharing(archive) as sharing_test:
        await sharing_test.turn("one", "first")
        link = await sharing_test.share()
        conversation = await sharing_test.parts.conversations.find(sharing_test.name, OWNER)
        question, _ = await sharing_test.parts.items.of_node(conversation, conversation.path()[0])
        await sharing_test.parts.conversations.remove_item(conversation, question["id"])
        page = await sharing_test.links.read(link, 0)
        assert page.items == [{"role": "assistant", "text": "first"}]


async def test_one_that_ended_is_told_as_one_that_never_was(archive: reader.Reader) -> None:
    async with sharing(archive) as sharing_test:
        await sharing_test.turn("one", "first")
        link = await sharing_test.share(60)
        sharing_test.now += 59
        assert await sharing_test.said(link)
        sharing_test.now += 1
        await nothing(sharing_test, link)
        sharing_test.now -= 1
        replace = msgspec.structs.replace
        for other in (
            replace(link, share="share_x"),
            replace(link, head="resp_x"),
            replace(link, expires_at=link.expires_at + 1),
            replace(link, owner=access.owner_of(BOB)),
            replace(link, conversation="conv_x"),
        ):
            await nothing(sharing_test, other)
        with pytest.raises(errors.ApiError) as error:
            await sharing_test.links.revoke(sharing_test.name, OWNER, "share_x")
        assert error.value.code == "share_not_found"
        await sharing_test.links.revoke(sharing_test.name, OWNER, link.share)
        await nothing(sharing_test, link)
        assert await sharing_test.links.live(sharing_test.name, OWNER) == {}


async def test_with_its_conversation_it_is_gone(archive: reader.Reader) -> None:
    async with sharing(archive) as sharing_test:
        await sharing_test.turn("one", "first")
        link = await sharing_test.share()
        await sharing_test.parts.conversations.delete(sharing_test.name, OWNER)
        await nothing(sharing_test, link)


async def test_the_live_ones_are_listed_and_there_is_a_most_of_them(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_links, "MAX_LINKS", 2)
    async with sharing(archive) as sharing_test:
        with pytest.raises(errors.ApiError) as error:
            await sharing_test.share()
        assert (error.value.status, error.value.param) == (400, "conversation_id")
        await sharing_test.turn("one", "first")
        first, second = await sharing_test.share(60), await sharing_test.share(600)
        live = await sharing_test.links.live(sharing_test.name, OWNER)
        assert list(live) == [second.share, first.share]
        with pytest.raises(errors.ApiError) as error:
            await sharing_test.share()
        assert "most" in error.value.message
        sharing_test.now += 60
        assert list(await sharing_test.links.live(sharing_test.name, OWNER)) == [second.share]
        third = await sharing_test.share()
        conversation = await sharing_test.parts.conversations.find(sharing_test.name, OWNER)
        assert list(conversation.shares) == [second.share, third.share], (
            "what has expired is forgotten"
        )


async def test_a_long_conversation_comes_in_pages(
    archive: reader.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_links, "MAX_NODES", 2)
    monkeypatch.setattr(share_links, "MAX_CHARS", 100)
    async with sharing(archive) as sharing_test:
        for question in ("0", "1", "x" * 100, "3", "4"):
            await sharing_test.add({"type": "message", "role": "user", "content": [part(question)]})
        link = await sharing_test.share()
        pages, at = [], 0
        while True:
            page = await sharing_test.links.read(link, at)
            pages.append([each["text"][:1] for each in page.items])
            if page.next is None:
                break
            at = page.next
        assert pages == [["0", "1"], ["x"], ["3", "4"]]
        assert (await sharing_test.links.read(link, 5)).items == []
        assert (await sharing_test.links.read(link, 999_999)).next is None


def part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def image() -> dict[str, Any]:
    return {"type": "input_image", "detail": "auto", "image_url": PIXEL}
