"""The chat page in a real browser: settings of a chat, and images and files with a question."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, MOBILE, Chat, Opener, overflow
from tests.journey.conftest import Stack
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page, page_events, pictures

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

PHOTO = pictures.png(1, 3000, 1500)
SMALL = pictures.png(2, 60, 40)
NOTES = "Zürich in May.\n"
# Gives the field files as the clipboard does, and the page as somebody does who drags them.
GIVE = """([kind, name, type, data]) => {
    const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
    const files = new DataTransfer();
    files.items.add(new File([bytes], name, { type }));
    const init = { bubbles: true, cancelable: true, dataTransfer: files, clipboardData: files };
    if (kind === 'paste') {
        document.querySelector('#question').dispatchEvent(new ClipboardEvent('paste', init));
    } else {
        document.querySelector('.scroll').dispatchEvent(new DragEvent('dragover', init));
        document.querySelector('.scroll').dispatchEvent(new DragEvent('drop', init));
    }
}"""


def settings_button(chat: Chat) -> sync_api.Locator:
    return chat.page.locator(".chat-settings")


def file(name: str, data: bytes, media: str = "") -> Any:
    return {"name": name, "mimeType": media or "application/octet-stream", "buffer": data}


def give(chat: Chat, kind: str, name: str, media: str, data: bytes) -> None:
    chat.page.evaluate(GIVE, [kind, name, media, base64.b64encode(data).decode()])


def names(chat: Chat) -> list[str]:
    """What goes with the last question, images by the names that are read aloud."""
    found: list[str] = chat.turn.locator(".files > li").evaluate_all(
        "all => all.map((each) => each.querySelector('canvas')?.getAttribute('aria-label') ?? "
        "each.querySelector('.name').textContent)"
    )
    return found


@pytest.mark.nightly
def test_settings_belong_to_the_chat_and_go_with_each_of_its_questions(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat = opener().open()
    page, keyboard = chat.page, chat.page.keyboard
    settings_button(chat).focus()
    keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Chat settings")
    dialog.get_by_role("textbox", name="Instructions").fill("Be brief.")
    dialog.get_by_role("slider", name="Temperature").focus()
    for _ in range(6):
        keyboard.press("ArrowLeft")
    sync_api.expect(dialog.locator("output")).to_have_text("0.7")
    length = dialog.get_by_role("textbox", name="Longest answer")
    length.fill("some")
    keyboard.press("Enter")
    sync_api.expect(dialog.get_by_role("alert").last).to_contain_text(
        "Enter a whole number from 1 to"
    )
    sync_api.expect(length).to_be_focused()
    length.fill("5")
    keyboard.press("Enter")
    sync_api.expect(dialog).to_be_hidden()
    sync_api.expect(settings_button(chat)).to_be_focused()
    told = "Chat settings: instructions, temperature 0.7, at most 5 tokens"
    sync_api.expect(settings_button(chat)).to_have_attribute("aria-label", told)

    def check(asked: Chat) -> None:
        said = asked.server_says()
        found = [said[name] for name in ("instructions", "temperature", "max_output_tokens")]
        assert found == ["Be brief.", 0.7, 5]

    chat.ask("Tell me much.")
    chat.status("incomplete")
    check(chat)
    page.get_by_role("button", name="Try again").click()
    sync_api.expect(chat.answers).to_have_text("2 / 2")
    chat.status("incomplete")
    check(chat)
    page.reload()
    chat.connected()
    other = opener().open(page.url.removeprefix(chat.stack.url))
    for each in (chat, other):
        sync_api.expect(settings_button(each)).to_have_attribute("aria-label", told)
    other.ask("And then?")
    other.status("incomplete")
    check(other)

    settings_button(other).click()
    other.page.get_by_role("button", name="Reset").click()
    other.page.get_by_role("button", name="Save").click()
    sync_api.expect(settings_button(chat)).to_have_attribute("aria-label", "Chat settings")
    chat.ask("Once more.")
    chat.status("completed")
    assert chat.server_says()["instructions"] is None
    settings_button(chat).click()
    page.get_by_role("textbox", name="Instructions").fill("Of this chat alone.")
    keyboard.press("Escape")  # is not saved, and stops nothing
    sync_api.expect(settings_button(chat)).to_have_attribute("data-usual", "true")
    assert chat.complained == other.complained == []


def test_images_and_files_go_with_a_question_and_stay_with_it(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat = opener().open()
    page = chat.page
    attached = page.locator(".tray > li")
    page.route("**/v1/files", lambda route: route.abort())
    page.locator(".tool input[type=file]").set_input_files(file("photo.png", PHOTO, "image/png"))
    sync_api.expect(attached).to_have_attribute("data-state", "failed")
    page.fill("#question", "What is it?")
    page.press("#question", "Enter")
    sync_api.expect(page.locator(".toast")).to_contain_text("was not uploaded")
    page.unroute("**/v1/files")
    page.get_by_role("button", name="Upload photo.png again").click()
    sync_api.expect(attached).to_have_attribute("data-state", "ready")
    give(chat, "paste", "image.png", "image/png", SMALL)
    give(chat, "drop", "notes.md", "", NOTES.encode())
    sync_api.expect(attached).to_have_count(3)
    sync_api.expect(page.locator('.tray > li[data-state="ready"]')).to_have_count(3)
    for name, data, words in (
        ("paper.pdf", b"%PDF-1.7", "neither an image nor a text"),
        ("log.txt", b"x" * 300_000, "too large. The limit is 262 kB"),
        ("none.txt", b"", "none.txt is empty"),
    ):
        give(chat, "drop", name, "", data)
        sync_api.expect(page.locator(".toast")).to_contain_text(words)
    give(chat, "drop", "broken.png", "image/png", b"no picture")
    sync_api.expect(page.locator(".toast")).to_contain_text("can't be read as an image")
    page.get_by_role("button", name="Remove image.png").click()
    page.reload()  # a draft with its files
    chat.connected()
    sync_api.expect(attached.locator("canvas")).to_have_count(1)
    assert page.input_value("#question") == "What is it?"
    page.press("#question", "Enter")
    chat.status("completed")
    sync_api.expect(attached).to_have_count(0)

    def shown(tab: Chat) -> None:
        sync_api.expect(tab.turn.locator(".files canvas")).to_have_count(1)
        assert names(tab) == ["photo.png", "notes.md"]

    shown(chat)
    kept = chat.kept()
    assert [each["kind"] for each in kept["attachments"]] == ["image", "file"]
    assert len(json.dumps(page.evaluate("({...localStorage})"))) < 10_000, "bytes are kept"
    answer = kept["answer"]["responseId"]
    items = page.request.get(f"{chat.stack.api}/responses/{answer}/input_items").json()["data"]
    image, text, question = items[0]["content"]
    data = base64.b64decode(image["image_url"].partition(",")[2])
    assert data.startswith(b"\xff\xd8"), "it was scaled, so it is a JPEG"
    assert len(data) < 600_000
    assert (text["text"], question["text"]) == (f"File notes.md:\n{NOTES}\n", "What is it?")

    page.get_by_role("button", name="Try again").click()
    sync_api.expect(chat.answers).to_have_text("2 / 2")
    chat.status("completed")
    shown(chat)
    # The upload is gone, the answer has what it was shown.
    for each in kept["attachments"]:
        gone = page.request.delete(
            f"{chat.stack.api}/files/{each['fileId']}", headers=chat.stack.headers
        )
        assert gone.status == 200, gone.text()
    page.reload()
    chat.connected()
    other = opener().open(page.url.removeprefix(chat.stack.url))
    for tab in (chat, other):
        shown(tab)
    page.get_by_role("button", name="Try again").click()
    sync_api.expect(chat.answers).to_have_text("3 / 3")
    chat.status("unsent")
    chat.turn.get_by_role("button", name="Edit").click()
    sync_api.expect(attached).to_have_count(2)
    page.get_by_role("button", name="Remove photo.png").click()
    page.get_by_role("button", name="Remove notes.md").click()
    assert chat.complained == other.complained == []


@pytest.mark.nightly
@pytest.mark.parametrize("device", [DESKTOP, MOBILE], ids=["desktop", "phone"])
def test_axe_finds_nothing_in_settings_and_attachments(
    browser: sync_api.Browser, tmp_path: Path, device: dict[str, Any]
) -> None:
    context = browser.new_context(**device)
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    uploads = iter(range(1, 9))
    upload = {"object": "file", "expires_at": 4_000_000_000}
    context.route(
        "**/v1/files", lambda route: route.fulfill(json={"id": f"f{next(uploads)}", **upload})
    )
    chat = Fed(context)
    page, screens = chat.page, accessibility.Screens(chat.page)
    chat.open()
    picker = page.locator(".tool input[type=file]")
    picker.set_input_files([file("a.png", SMALL, "image/png"), file("notes.md", NOTES.encode())])
    sync_api.expect(page.locator('.tray > li[data-state="ready"]')).to_have_count(2)
    context.route("**/v1/files", lambda route: route.abort())
    picker.set_input_files(file("a long name of a file that is not taken.csv", b"a,b"))
    sync_api.expect(page.locator('.tray > li[data-state="failed"]')).to_have_count(1)
    screens.look("attachments")
    page.screenshot(path=tmp_path / "tray.png")
    page.get_by_role("button", name="Remove a long name").click()
    chat.ask("What is in it?")
    services.feed(page_events.spoken(("m", "Notes.")))
    chat.status("completed")
    sent = services.asked[0]["input"][0]["content"]
    assert [part["type"] for part in sent] == ["input_image", "input_file", "input_text"]
    assert {part.get("file_id") for part in sent} == {"f1", "f2", None}
    screens.look("a question with attachments")
    page.screenshot(path=tmp_path / "asked.png")
    settings_button(chat).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Longest answer").fill("2000")
    dialog.get_by_role("button", name="Save").click()
    sync_api.expect(dialog.get_by_role("alert").last).to_contain_text("from 1 to 1000")
    screens.look("settings")
    page.screenshot(path=tmp_path / "settings.png")
    assert overflow(page) == 0
    dialog.get_by_role("textbox", name="Longest answer").fill("20")
    dialog.get_by_role("button", name="Save").click()
    sync_api.expect(settings_button(chat)).to_have_attribute("data-usual", "false")

    blind = {**fed_page.CONFIG, "takes": {"m": {"images": False, "files": True}}}
    context.route("**/config.json", lambda route: route.fulfill(json=blind))
    page.reload()
    chat.connected()
    sync_api.expect(page.get_by_role("button", name="Attach text files")).to_be_visible()
    page.screenshot(path=tmp_path / "mark.png")
    picker.set_input_files(file("a.png", SMALL, "image/png"))
    sync_api.expect(page.locator(".toast")).to_contain_text("does not accept images")
    nothing = {**fed_page.CONFIG, "takes": {}}
    context.route("**/config.json", lambda route: route.fulfill(json=nothing))
    page.reload()
    chat.connected()
    sync_api.expect(page.locator(".tool:has(input)")).to_be_hidden()
    assert chat.complained == []
    context.close()
    screens.check()
