"""The chat page in a real browser: chats that the server keeps, equal on all devices of a user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright import sync_api

from tests.journey import conftest
from tests.journey.chat_page import DESKTOP, MOBILE, Chat, Opener, slowly
from tests.journey.conftest import Stack
from tests.support import accessibility

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]


def names(chat: Chat) -> sync_api.Locator:
    return chat.page.locator(".conversations .words")


def questions(chat: Chat) -> sync_api.Locator:
    return chat.page.locator(".question")


def options(chat: Chat, name: str) -> sync_api.Locator:
    """The dialog of the chat of this name, opened."""
    chat.page.get_by_role("button", name=f"Options of {name}").click()
    return chat.page.get_by_role("dialog", name="Chat options")


def answer_texts(chat: Chat) -> list[str]:
    return [" ".join(each.split()) for each in chat.page.locator(".prose").all_text_contents()]


def on_the_server(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(
        f"{stack.api}/conversations", headers=stack.headers, timeout=30.0
    ).json()["data"]
    return found


def test_two_devices_of_a_user_are_in_step_and_another_user_sees_nothing(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    here = tabs(scripted_stack)().open()
    slowly(here, 400, 50)
    in_step(here, tabs, scripted_stack)


def in_step(here: Chat, tabs: Callable[..., Opener], stack: Stack) -> None:
    """What is said at one device is seen at all of this user's, and by no one else. `here` answers
    slowly."""
    there = tabs(stack)().open()
    here.ask("Seen on both?")
    here.streaming(10)
    sync_api.expect(names(there)).to_have_text(["Seen on both?"])
    assert "#c=conv_" in here.page.url
    there.page.goto(here.page.url)
    there.connected()
    there.streaming(5)
    for each in (here, there):
        each.status("completed")
    assert answer_texts(here) == answer_texts(there)
    there.ask("Goes on there.")
    sync_api.expect(questions(here)).to_have_text(["Seen on both?", "Goes on there."])
    for each in (here, there):
        each.status("completed")
    # In other words, at one of them: both show the new version, and both can go back.
    turn = here.page.locator(".turn").first
    turn.hover()
    turn.get_by_role("button", name="Change question").click()
    field = turn.get_by_role("textbox", name="Your question")
    field.fill("In other words?")
    field.press("Enter")
    sync_api.expect(questions(there)).to_have_text(["In other words?"])
    there.status("completed")
    there.turn.get_by_role("button", name="Previous version of the question").click()
    sync_api.expect(questions(here)).to_have_text(["Seen on both?", "Goes on there."])
    # A device that comes later reads all of it from the server.
    late = tabs(stack)().open(here.page.url.removeprefix(stack.url))
    sync_api.expect(questions(late)).to_have_text(["Seen on both?", "Goes on there."])
    assert answer_texts(late) == answer_texts(here)
    counter = late.page.get_by_role("group", name="Versions of the question")
    sync_api.expect(counter).to_have_text("1 / 2")
    for each in (here, there, late):
        assert each.complained == []
    other = tabs(stack)()
    other.page.goto(f"{stack.url}/#credential={stack.token('mallory')}")
    other.page.get_by_role("dialog").get_by_role("button", name="Sign in as mallory").click()
    other.connected()
    other.page.goto(here.page.url)
    other.page.reload()
    other.connected()
    assert "Seen on both" not in other.page.content()
    sync_api.expect(names(other)).to_have_count(0)


@pytest.mark.nightly
def test_a_chat_is_named_pinned_found_and_deleted_on_all_devices(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    here, there = tabs(scripted_stack)().open(), tabs(scripted_stack)().open()
    for question in ("A needle in the hay.", "Something else."):
        here.page.get_by_role("button", name="New chat").first.click()
        here.ask(question)
        here.status("completed")
    sync_api.expect(names(there)).to_have_text(["Something else.", "A needle in the hay."])
    dialog = options(here, "A needle in the hay.")
    dialog.get_by_label("Name").fill("Sewing")
    dialog.get_by_role("button", name="Save").click()
    sync_api.expect(names(there)).to_have_text(["Something else.", "Sewing"])
    dialog = options(there, "Sewing")
    sync_api.expect(dialog.get_by_role("button", name="Create link")).to_be_visible()
    dialog.get_by_label("Pin to the top").check()
    there.page.keyboard.press("Escape")
    sync_api.expect(names(here)).to_have_text(["Sewing", "Something else."])
    # The other device never opened it: the server finds it.
    search = there.page.get_by_role("searchbox", name="Search chats")
    search.fill("needle")
    sync_api.expect(names(there)).to_have_text(["Sewing"])
    sync_api.expect(there.page.locator(".conversations .snippet")).to_contain_text("needle")
    search.fill("nothing of the kind")
    sync_api.expect(there.page.get_by_text("Nothing found.")).to_be_visible()
    there.page.keyboard.press("Escape")
    sync_api.expect(names(there)).to_have_text(["Sewing", "Something else."])
    options(here, "Sewing").get_by_role("button", name="Delete chat").click()
    sync_api.expect(names(here)).to_have_text(["Something else."])
    here.page.get_by_role("button", name="Undo").click()
    sync_api.expect(names(here)).to_have_text(["Sewing", "Something else."])
    options(here, "Sewing").get_by_role("button", name="Delete chat").click()
    sync_api.expect(names(there)).to_have_text(["Something else."])
    assert [each["title"] for each in on_the_server(scripted_stack)] == ["Something else."]
    for each in (here, there):
        assert each.complained == []


@pytest.mark.nightly
def test_a_chat_goes_on_where_the_other_device_was_offline(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    here, there = tabs(scripted_stack)().open(), tabs(scripted_stack)().open()
    here.ask("First.")
    here.status("completed")
    there.page.goto(here.page.url)
    there.connected()
    there.status("completed")
    there.page.context.set_offline(True)
    there.page.wait_for_selector('.status[data-state="offline"]')
    there.ask("Asked without a connection.")
    here.ask("Asked meanwhile.")
    here.status("completed")
    there.page.context.set_offline(False)
    # Both follow the same answer, so they are versions of each other; none is lost.
    conftest.wait_for(
        lambda: len(nodes(scripted_stack)) == 3, "the question that waited is in the log"
    )
    for each in (here, there):
        sync_api.expect(each.wordings).to_contain_text("/ 2")
        sync_api.expect(questions(each)).to_have_text(["First.", "Asked without a connection."])
        each.status("completed")


def test_a_chat_is_shared_and_saved(tabs: Callable[..., Opener], scripted_stack: Stack) -> None:
    chat = tabs(scripted_stack)().open()
    chat.ask("For all to read.")
    chat.status("completed")
    answer = chat.check_exact()
    dialog = options(chat, "For all to read.")
    with chat.page.expect_download() as markdown:
        dialog.get_by_role("button", name="Markdown").click()
    assert markdown.value.suggested_filename == "For all to read.md"
    saved = markdown.value.path().read_text()
    assert "For all to read." in saved
    assert answer in saved
    with chat.page.expect_download() as whole:
        dialog.get_by_role("button", name="JSON").click()
    assert json.loads(whole.value.path().read_text())["title"] == "For all to read."
    dialog.get_by_role("button", name="Create link").click()
    link = dialog.get_by_role("link", name="Link until").get_attribute("href")
    assert link is not None
    guest = tabs(scripted_stack)().page
    guest.goto(link)
    sync_api.expect(guest.locator(".prose")).to_have_count(1)
    assert "For all to read." in guest.content()
    dialog.get_by_role("button", name="Close").click()
    chat.ask("Not for all.")
    chat.status("completed")
    guest.reload()
    sync_api.expect(guest.locator(".prose")).to_have_count(1)
    assert "Not for all." not in guest.content()
    options(chat, "For all to read.").get_by_role("button", name="Revoke").click()
    sync_api.expect(dialog.get_by_role("button", name="Revoke")).to_have_count(0)
    guest.reload()
    sync_api.expect(guest.get_by_text("This link does not work")).to_be_visible()
    assert "For all to read." not in guest.content()
    assert chat.complained == []


def nodes(stack: Stack) -> list[dict[str, Any]]:
    (only,) = on_the_server(stack)
    found: list[dict[str, Any]] = httpx.get(
        f"{stack.api}/conversations/{only['id']}/nodes", headers=stack.headers, timeout=30.0
    ).json()["data"]
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_the_list_and_its_dialog_are_accessible(
    tabs: Callable[..., Opener], scripted_stack: Stack, device: str
) -> None:
    chat = tabs(scripted_stack, **(MOBILE if device == "phone" else DESKTOP))().open()
    screens = accessibility.Screens(chat.page)
    chat.ask("Seen by all?")
    chat.status("completed")
    if device == "phone":
        chat.page.get_by_role("button", name="Chats", exact=True).click()
    screens.look("the list of chats")
    chat.page.get_by_role("searchbox", name="Search chats").fill("seen")
    sync_api.expect(names(chat)).to_have_text(["Seen by all?"])
    screens.look("chats that were found")
    dialog = options(chat, "Seen by all?")
    sync_api.expect(dialog.get_by_label("Name")).to_be_focused()
    screens.look("the dialog of a chat")
    screens.check()
