"""The chat page in Firefox: what another engine may do differently. The rest is held in Chromium
(test_page.py and its siblings)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, MOBILE, Chat, Opener, overflow
from tests.journey.conftest import ROOT, Stack
from tests.journey.test_page import handing_out_none, only_grew, under_a_new_credential
from tests.journey.test_page_chats import questions, state
from tests.journey.test_page_diagrams import FLOWCHART, NO_DIAGRAM, SEQUENCE, WRONG, Drawn, fenced
from tests.journey.test_page_server import in_step
from tests.journey.test_page_text import RIGHT_TO_LEFT, TEXT, Shown
from tests.support import accessibility, firefox_relay

pytestmark = [pytest.mark.firefox, pytest.mark.nightly, pytest.mark.timeout(400)]

# Firefox does not show its driver what a request posts, so a route cannot add to it.
CUES = """
(() => {
  const send = window.fetch;
  window.fetch = (address, options) => {
    const cues = JSON.parse(sessionStorage.getItem('cues') ?? '{}');
    if (options?.method !== 'POST' || !address.endsWith('/v1/responses')) {
      return send(address, options);
    }
    const body = JSON.parse(options.body);
    Object.assign(body.metadata, cues);
    return send(address, { ...options, body: JSON.stringify(body) });
  };
})();
"""
# The widths of the text at which the first number of a note is on another line than its word.
ALONE = """
(prose) => {
  const note = prose.querySelector('.note-ref');
  const word = document.createRange();
  word.setStart(note.previousSibling, note.previousSibling.length - 1);
  word.setEnd(note.previousSibling, note.previousSibling.length);
  const bottom = (part) => part.getBoundingClientRect().bottom;
  const found = [];
  for (let width = 200; width < 500; width += 3) {
    prose.style.width = `${width}px`;
    if (bottom(note) > bottom(word) + 5) found.push(width);
  }
  prose.style.width = '';
  return found;
}"""
# How far from the beginning of its line an item's text is.
INDENT = """
(item) => {
  const text = document.createRange();
  text.selectNodeContents(item);
  return text.getBoundingClientRect().left - item.getBoundingClientRect().left;
}"""


@pytest.fixture(scope="module")
def browser(firefox: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sync_api.Browser]:
    """In the place of Chromium for all that opens tabs."""
    if not (ROOT / "frontend" / "dist" / "index.html").exists():
        pytest.skip("the page is not built (make install)")
    program = firefox_relay.launcher(tmp_path_factory.mktemp("firefox"), firefox)
    with sync_api.sync_playwright() as playwright:
        started = playwright.firefox.launch(
            channel=firefox_relay.CHANNEL,
            executable_path=program,
            firefox_user_prefs=firefox_relay.PREFERENCES,
        )
        yield started
        started.close()


@pytest.fixture
def tab(tabs: Callable[..., Opener], scripted_stack: Stack) -> Chat:
    """A tab that is not on the page yet."""
    chat = tabs(scripted_stack)()
    chat.page.add_init_script(CUES)
    return chat


def slowly(chat: Chat, tokens: int, pace_ms: int) -> None:
    """The scripted engine answers what this tab asks with so many tokens at such a pace."""
    cues = {"script_tokens": str(tokens), "script_pace_ms": str(pace_ms)}
    chat.page.evaluate("cues => sessionStorage.setItem('cues', JSON.stringify(cues))", cues)


def test_a_reader_signs_in_by_a_link_asks_copies_and_signs_out(tab: Chat) -> None:
    chat, page = handing_out_none(tab), tab.page
    page.goto(f"{chat.stack.url}/#credential={chat.stack.token('alice')}")
    page.get_by_role("button", name="Sign in as alice").click()
    chat.connected()
    assert "credential" not in page.url
    screens = accessibility.Screens(page)
    screens.look("welcome", ["light"])
    assert page.evaluate("document.activeElement.id") == "question"
    slowly(chat, 120, 15)
    chat.ask("A secret of mine.")
    chat.status("completed")
    chat.check_plain()
    shown = page.evaluate("window.shown")
    only_grew(shown)
    assert len(shown) > 2, "it grew in steps"
    chat.turn.get_by_role("button", name="Copy answer").click()
    sync_api.expect(chat.turn.get_by_role("button", name="Copied")).to_be_visible()
    assert chat.complaints == []
    page.get_by_role("button", name="Sign out").click()
    sync_api.expect(page.get_by_label("Credential")).to_be_visible()
    assert "secret" not in page.content()
    screens.look("signed out", ["light"])
    page.reload()
    sync_api.expect(page.get_by_label("Credential")).to_be_visible()
    assert "secret" not in page.content()
    screens.check()


def test_an_answer_goes_on_through_reloads_and_the_next_one_can_be_stopped(tab: Chat) -> None:
    chat = tab.open()
    slowly(chat, 300, 15)
    chat.ask("Tell me much.")
    for characters in (1, 400):
        chat.streaming(characters)
        chat.page.reload()
        chat.connected()
    chat.status("completed")
    only_grew(chat.page.evaluate("window.shown"))
    chat.check_plain()
    assert chat.page.locator(".turn").count() == 1
    slowly(chat, 4000, 20)
    chat.ask("Count to four thousand.")
    chat.streaming(20)
    chat.page.keyboard.press("Escape")
    chat.status("cancelled")
    assert chat.server_says()["status"] == "cancelled"
    chat.check_plain()
    assert chat.complaints == []


def test_an_answer_goes_on_when_the_connection_is_back(tab: Chat) -> None:
    chat = tab.open()
    slowly(chat, 150, 15)
    chat.ask("Go on without me.")
    chat.streaming()
    chat.page.context.set_offline(True)
    state(chat, "offline")
    chat.ask("Are you there?")
    chat.page.context.set_offline(False)
    state(chat, "open")
    chat.status("completed")
    assert questions(chat) == ["Go on without me.", "Are you there?"]
    chat.check_exact()
    assert chat.complained == []


def test_an_answer_goes_on_under_a_new_credential_when_the_old_one_expires(tab: Chat) -> None:
    under_a_new_credential(handing_out_none(tab), tab.stack, slowly)


def test_two_devices_of_a_user_are_in_step_and_another_user_sees_nothing(
    tab: Chat, tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    here = tab.open()
    slowly(here, 120, 15)
    in_step(here, tabs, scripted_stack)


def test_formulas_and_text_from_the_right_are_drawn(
    browser: sync_api.Browser, tmp_path: Path
) -> None:
    chat = Shown(browser, "What are its roots?\n" * 14, **DESKTOP)
    chat.answer(TEXT)
    drawn = chat.prose.locator(".math .katex")
    sync_api.expect(drawn).to_have_count(8)
    assert chat.prose.locator("math msqrt").count() == 2
    height = drawn.nth(1).locator(".katex-html").bounding_box()
    assert height is not None
    assert 30 < height["height"] < 90, "the fraction has its styles"
    assert drawn.first.evaluate(
        "() => document.fonts.ready.then(() => document.fonts.check('16px KaTeX_Math'))"
    )
    assert chat.prose.evaluate(ALONE) == [], "the number of a note is beside its word"
    chat.services.next_response()
    chat.ask("مرحبا، كيف الحال؟")
    chat.answer(RIGHT_TO_LEFT)
    sync_api.expect(chat.prose.locator(".math .katex")).to_have_count(1)
    directions = chat.prose.evaluate(
        """prose => ['h1', 'p', 'ul', 'li:nth-child(2)', 'blockquote', 'table', 'p code']
            .map((each) => getComputedStyle(prose.querySelector(each)).direction)"""
    )
    assert directions == ["rtl", "rtl", "rtl", "ltr", "rtl", "rtl", "ltr"]
    assert chat.prose.locator("li:nth-child(2)").evaluate(INDENT) < 1, "beside its mark"
    screens = accessibility.Screens(chat.page)
    screens.look("a text with everything")
    chat.page.set_viewport_size(MOBILE["viewport"])
    chat.page.wait_for_function("() => innerWidth === 390")
    screens.look("the same on a phone", ["light"])
    screens.check()
    assert overflow(chat.page) == 0
    assert chat.complained == []  # Playwright itself breaks the policy with each screenshot
    pictures(chat, tmp_path)
    chat.context.close()


def pictures(chat: Shown, folder: Path) -> None:
    """For people to look at: both themes, and a phone's width."""
    for device in (MOBILE, DESKTOP):
        chat.page.set_viewport_size(device["viewport"])
        width = device["viewport"]["width"]
        for scheme in ("dark", "light"):
            chat.page.emulate_media(color_scheme=scheme)
            assert chat.page.evaluate(f"matchMedia('(prefers-color-scheme: {scheme})').matches")
            for name, part in (
                ("maths", chat.page.locator(".turn .prose h1").first),
                ("right-to-left", chat.turn),
            ):
                part.scroll_into_view_if_needed()
                chat.page.screenshot(path=folder / f"{name}-{scheme}-{width}.png")


def test_diagrams_are_drawn(browser: sync_api.Browser, tmp_path: Path) -> None:
    chat = Drawn(browser, **DESKTOP)
    chat.answer(fenced(FLOWCHART, SEQUENCE, NO_DIAGRAM))
    for block, text in zip(chat.diagrams.all(), ("Is it new?", "queued"), strict=False):
        block.scroll_into_view_if_needed()
        sync_api.expect(chat.shown_in(block).get_by_text(text).first).to_be_visible()
    sync_api.expect(chat.diagrams.locator(".diagram-note")).to_have_text([WRONG])
    assert chat.complained == []
    chat.page.screenshot(path=tmp_path / "diagrams.png")
    chat.context.close()
