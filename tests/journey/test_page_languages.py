"""The chat page in a real browser, in a language other than English."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, DEVICES, MOBILE, overflow
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page, page_events

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ANSWER = (
    "Zwei Dinge:[^1]\n\n- [x] Wasser\n- [ ] Brot\n\n```python\nprint(1)\n```\n\n[^1]: Wirklich."
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.nightly
def test_a_german_browser_sees_german_until_another_language_is_chosen(
    browser: sync_api.Browser, tmp_path: Path, device: dict[str, Any]
) -> None:
    context = browser.new_context(**device, locale="de-DE")
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    chat = Fed(context)
    page, screens = chat.page, accessibility.Screens(chat.page)
    chat.open()
    language = page.locator("html")
    sync_api.expect(language).to_have_attribute("lang", "de")
    sync_api.expect(page.locator(".welcome h2")).to_have_text("Was möchtest du wissen?")
    sync_api.expect(page.locator(".status")).to_have_text("Verbunden")
    screens.look("welcome", ["light"])
    page.screenshot(path=tmp_path / "welcome.png")

    chat.ask("Was nehme ich mit?")
    services.feed(page_events.spoken(("m", ANSWER)))
    chat.status("completed")
    for name in ("Antwort kopieren", "Erneut versuchen", "Code kopieren", "Fußnote 1"):
        sync_api.expect(chat.turn.get_by_role("button", name=name, exact=True)).to_be_visible()
    sync_api.expect(chat.spoken).to_contain_text("Die Antwort ist fertig.")
    screens.look("an answer", ["light"])
    page.screenshot(path=tmp_path / "answer.png")
    assert overflow(page) == 0

    page.fill("#question", "Noch nicht gesendet")
    if device is MOBILE:
        page.get_by_role("button", name="Chats", exact=True).click()
    choice = page.get_by_role("combobox", name="Sprache")
    assert choice.locator("option").all_text_contents() == ["Systemsprache", "English", "Deutsch"]
    screens.look("the choice of a language", ["light"])
    page.screenshot(path=tmp_path / "choice.png")
    choice.select_option("en")
    chosen = page.get_by_role("combobox", name="Language")
    sync_api.expect(chosen).to_be_focused()
    sync_api.expect(chosen).to_have_value("en")
    page.reload()
    sync_api.expect(language).to_have_attribute("lang", "en")
    sync_api.expect(page.locator(".status")).to_have_text("Connected")
    sync_api.expect(chat.turn.get_by_role("button", name="Copy answer")).to_be_visible()
    assert page.input_value("#question") == "Noch nicht gesendet"
    assert chat.complained == []
    context.close()
    screens.check()


@pytest.mark.nightly
def test_a_choice_that_cannot_be_kept_changes_nothing_and_says_so(
    browser: sync_api.Browser,
) -> None:
    context = browser.new_context(**DESKTOP)
    context.set_default_timeout(30_000)
    fed_page.Services(context)
    chat = Fed(context)
    chat.open()
    chat.page.evaluate("void (Storage.prototype.setItem = () => { throw new Error('full'); })")
    choice = chat.page.get_by_role("combobox", name="Language")
    choice.select_option("de")
    said = "This browser can't store the language."
    sync_api.expect(chat.page.locator(".toast")).to_have_text(said)
    sync_api.expect(choice).to_have_value("auto")
    context.close()
