"""The chat page with a long chat, and with what draws answers late."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright import sync_api

from bench import page, page_text
from tests.journey.chat_page import DESKTOP
from tests.journey.fed_chat import Fed
from tests.support import fed_page, page_events

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

TURNS = 60


@pytest.fixture
def fed(browser: sync_api.Browser) -> Iterator[tuple[Fed, fed_page.Services]]:
    context = browser.new_context(**DESKTOP)
    context.set_default_timeout(30_000)
    context.add_init_script(page.PROBE.read_text())
    services = fed_page.Services(context)
    yield Fed(context), services
    context.close()


def at_end(chat: Fed) -> bool:
    found: bool = chat.page.locator(".scroll").evaluate(
        "box => box.scrollHeight - box.scrollTop - box.clientHeight < 2"
    )
    return found


def preloaded(chat: Fed) -> bool:
    """Whether what draws answers was asked for before the page's own modules ran."""
    found: bool = chat.page.locator("link[data-chat]").evaluate(
        """link => {
            const [draws] = performance.getEntriesByName(link.href);
            const [first] = performance.getEntriesByType('resource').filter(
                each => each.initiatorType === 'fetch');
            return link.rel === 'modulepreload' && draws.startTime < first.startTime;
        }"""
    )
    return found


@pytest.mark.nightly
def test_a_long_chat_opens_at_its_end_and_is_drawn_whole(
    fed: tuple[Fed, fed_page.Services],
) -> None:
    chat, services = fed
    chat.open()
    assert preloaded(chat) is False
    chat.ask("First?")
    services.feed(page_events.spoken(("", page_text.answer(0))))
    chat.status("completed")
    texts = [page_text.answer(number) for number in range(TURNS)]
    long = chat.page.evaluate("texts => probe.keep(texts)", texts)
    chat.page.goto(f"{fed_page.ORIGIN}/?long#c={long}")
    chat.page.evaluate("probe.last")
    assert preloaded(chat) is True
    assert at_end(chat)
    chat.page.evaluate("turns => probe.all(turns)", TURNS)
    assert at_end(chat)
    asked = [f"Question {number}:" for number in range(1, TURNS + 1)]
    found = chat.page.locator(".question-text").all_text_contents()
    assert [text[: len(want)] for text, want in zip(found, asked, strict=True)] == asked
    sync_api.expect(
        chat.page.locator(".turn").first.locator(".hljs-keyword").first
    ).to_be_attached()

    # Where a reader is, nothing moves, though what is above is first laid out when it comes near.
    chat.page.locator(".turn").nth(40).evaluate(
        """turn => {
            document.querySelector('.scroll').dispatchEvent(new WheelEvent('wheel', {deltaY: -1}));
            turn.scrollIntoView();
        }"""
    )
    two_frames(chat)
    read = chat.page.locator(".turn").nth(40)
    before = read.bounding_box()
    for _ in range(5):
        two_frames(chat)
    assert read.bounding_box() == before
    chat.page.get_by_role("button", name="Jump to the latest text").click()
    chat.page.wait_for_function(
        """() => {
            const box = document.querySelector('.scroll');
            return box.scrollHeight - box.scrollTop - box.clientHeight < 2;
        }"""
    )
    assert chat.complained == []


def two_frames(chat: Fed) -> None:
    chat.page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


@pytest.mark.nightly
def test_until_what_draws_markdown_has_come_an_answer_is_shown_as_it_was_written(
    fed: tuple[Fed, fed_page.Services],
) -> None:
    chat, services = fed
    held: list[sync_api.Route] = []
    chat.page.route("**/assets/markdown-*.js", lambda route: held.append(route))
    chat.open()
    chat.ask("Well?")
    services.feed(page_events.spoken(("", "Some **bold** words.")))
    sync_api.expect(chat.turn.locator(".prose .unparsed")).to_have_text("Some **bold** words.")
    for route in held:
        route.fallback()
    sync_api.expect(chat.turn.locator(".prose strong")).to_have_text("bold")
    sync_api.expect(chat.turn.locator(".prose > *")).to_have_count(1)
    assert chat.complained == []
