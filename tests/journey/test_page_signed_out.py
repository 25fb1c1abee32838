"""The chat page without a session: nothing that was typed is lost, and nothing of it goes to
another user. The services are a script."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, DEVICES
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page, page_events

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ANSWER = page_events.spoken(("m", "It is so."))
STREAMED = 5  # of its events


class Reader:
    """The tabs of one browser profile, and the person at it."""

    def __init__(self, context: sync_api.BrowserContext) -> None:
        context.set_default_timeout(30_000)
        self.context = context
        self.services = fed_page.Services(context)
        self.chat = Fed(context)
        self.page = self.chat.page

    def visit(self) -> None:
        """Opens the page, and closes the dialog that asks for a credential."""
        self.page.goto(fed_page.ORIGIN)
        self.leave_dialog()

    def leave_dialog(self) -> None:
        self.page.get_by_label("Credential").wait_for()
        self.page.keyboard.press("Escape")
        sync_api.expect(self.page.get_by_role("dialog")).to_have_count(0)

    def sign_in(self, subject: str) -> None:
        # A question that is tried again opens the dialog, too, and then covers the button.
        self.page.locator(".banner").get_by_role("button", name="Sign in").dispatch_event("click")
        self.chat.submit_credential(fed_page.credential(subject))
        self.chat.connected()
        sync_api.expect(self.page.locator(".account .words")).to_have_text(subject)

    def sign_out(self) -> None:
        self.page.get_by_role("button", name="Sign out").click()
        self.page.get_by_label("Credential").wait_for()

    def ask_in_vain(self, question: str) -> None:
        self.chat.ask(question)
        self.leave_dialog()
        self.chat.status("unsent")


@pytest.fixture(name="reader")
def opened(browser: sync_api.Browser) -> Iterator[Reader]:
    context = browser.new_context(**DESKTOP)
    yield Reader(context)
    context.close()


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_typed_on_a_first_visit_stays_and_is_sent_after_the_sign_in(
    browser: sync_api.Browser, tmp_path: Path, device: dict[str, Any]
) -> None:
    context = browser.new_context(**device)
    reader = Reader(context)
    reader.services.user = None
    page, chat, screens = reader.page, reader.chat, accessibility.Screens(reader.page)
    page.goto(fed_page.ORIGIN)
    page.get_by_label("Credential").wait_for()
    assert "not accepted" not in page.content()
    screens.look("the first visit")
    page.screenshot(path=tmp_path / "visit.png")
    reader.leave_dialog()
    sync_api.expect(page.locator(".banner")).to_contain_text("You are not signed in.")
    sync_api.expect(page.locator(".status")).to_have_text("Not signed in")
    screens.look("without a session")
    page.screenshot(path=tmp_path / "welcome.png")
    reader.ask_in_vain("Is it so?")
    sync_api.expect(chat.turn).to_contain_text("is sent when you sign in")
    page.fill("#question", "And if")
    screens.look("a question that waits")
    screens.measure("a question that waits")
    page.screenshot(path=tmp_path / "waits.png")
    page.reload()
    reader.leave_dialog()
    sync_api.expect(page.locator(".question")).to_have_text(["Is it so?"])
    assert page.input_value("#question") == "And if"
    assert "not accepted" not in page.content()

    reader.sign_in("alice")
    reader.services.feed(ANSWER)
    chat.status("completed")
    assert reader.services.askers == ["alice"]
    assert page.input_value("#question") == "And if"
    sync_api.expect(page.locator(".banner")).to_be_hidden()
    context.close()
    screens.check()


def test_what_is_typed_after_a_sign_out_goes_to_the_former_user_and_to_no_other_one(
    reader: Reader, tmp_path: Path
) -> None:
    page, chat, services = reader.page, reader.chat, reader.services
    services.user = "alice"
    chat.open()
    reader.sign_out()
    reader.leave_dialog()
    reader.ask_in_vain("Is it so?")
    sync_api.expect(chat.turn).to_contain_text("when the user who was signed in before")
    page.fill("#question", "And if")
    page.screenshot(path=tmp_path / "waits.png")
    reader.sign_in("bob")
    sync_api.expect(page.locator(".toast")).to_contain_text("for the user who was signed in before")
    page.screenshot(path=tmp_path / "another.png")
    assert "Is it so?" not in page.content()
    assert page.input_value("#question") == ""
    reader.sign_out()
    reader.sign_in("alice")
    page.locator(".conversations .words").click()
    services.feed(ANSWER)
    chat.status("completed")
    assert services.askers == ["alice"]
    assert page.input_value("#question") == "And if"


WAYS = ("by a button", "in another tab", "the session ended", "the credential was refused")
STATES = ("typed", "edited", "waiting", "not acknowledged", "streaming")


@pytest.mark.parametrize(
    ("way", "state"),
    [
        pytest.param(way, state, marks=[] if way == "in another tab" else [pytest.mark.nightly])
        for way, state in itertools.product(WAYS, STATES)
    ],
)
def test_a_sign_out_loses_nothing(reader: Reader, way: str, state: str) -> None:
    """Another user signs in in between, and sees nothing of it."""
    page, chat, services = reader.page, reader.chat, reader.services
    services.user = "alice"
    chat.open()
    bring_to(reader, state)
    end_session(reader, way)
    reader.sign_in("bob")
    assert "alice's" not in page.content()
    assert page.input_value("#question") == ""
    reader.sign_out()
    reader.sign_in("alice")
    if state != "typed":
        page.locator(".conversations .words").click()
    complete(reader, state)
    assert set(services.askers) <= {"alice"}


def bring_to(reader: Reader, state: str) -> None:
    chat, services = reader.chat, reader.services
    if state == "typed":
        reader.page.fill("#question", "alice's question")
        return
    services.loses_reply = state == "not acknowledged"
    chat.ask("alice's question")
    if state == "not acknowledged":
        assert chat.turn.get_attribute("data-status") == "sending"
        return
    services.feed(ANSWER if state == "edited" else ANSWER[:STREAMED])
    if state == "edited":
        chat.status("completed")
        reader.page.get_by_role("button", name="Change question").click()
        chat.turn.get_by_role("textbox", name="Your question").fill("alice's edit")
        return
    chat.status("in_progress")
    if state == "waiting":
        chat.ask("alice's next question")


def end_session(reader: Reader, way: str) -> None:
    page, services = reader.page, reader.services
    if way == "by a button":
        reader.sign_out()
        return
    if way == "in another tab":
        other = Fed(reader.context).open()
        other.page.get_by_role("button", name="Sign out").click()
        other.page.get_by_label("Credential").wait_for()
        other.page.close()
        sync_api.expect(page.locator(".banner")).to_contain_text("You are not signed in.")
        assert "alice's" not in page.content()
        return
    services.user = None
    services.close_sockets(4003 if way == "the session ended" else 4500)
    page.locator(".banner").get_by_role("button", name="Sign in").wait_for()


def complete(reader: Reader, state: str) -> None:
    page, chat, services = reader.page, reader.chat, reader.services
    if state == "typed":
        assert page.input_value("#question") == "alice's question"
        assert services.asked == []
        return
    if state == "edited":
        chat.turn.hover()
        page.get_by_role("button", name="Change question").click()
        field = chat.turn.get_by_role("textbox", name="Your question")
        assert field.input_value() == "alice's edit"
        return
    services.begins_anew = state == "waiting"
    services.feed(ANSWER[len(services.events) :])
    if state == "waiting":
        chat.status("queued")
        services.feed(ANSWER)
    chat.status("completed")
    assert len(services.asked) == (2 if state == "waiting" else 1)


def test_a_file_that_is_attached_without_a_session_is_uploaded_after_the_sign_in(
    reader: Reader, tmp_path: Path
) -> None:
    page, services = reader.page, reader.services
    services.user = None
    reader.visit()
    attached = page.locator(".tray > li")
    page.locator("input[type=file]").set_input_files(
        {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"a note"}
    )
    reader.leave_dialog()
    sync_api.expect(attached).to_have_attribute("data-state", "waiting")
    sync_api.expect(attached).to_contain_text("The file is uploaded when you sign in.")
    page.fill("#question", "What do they say?")
    page.press("#question", "Enter")
    sync_api.expect(page.locator(".toast")).to_contain_text("A file is not uploaded yet.")
    page.screenshot(path=tmp_path / "file.png")
    reader.sign_in("alice")
    sync_api.expect(attached).to_have_attribute("data-state", "ready")
    page.press("#question", "Enter")
    reader.chat.status("queued")
    assert services.asked[0]["metadata"]["file.0"]


def test_a_sign_out_lasts_where_the_gateway_hands_out_credentials(
    reader: Reader, tmp_path: Path
) -> None:
    page, services = reader.page, reader.services
    services.user, services.development_user = None, "dev"
    reader.chat.open()
    reader.sign_out()
    for _ in range(2):
        reader.leave_dialog()
        sync_api.expect(page.locator(".banner")).to_contain_text("You are not signed in.")
        page.reload()
    page.get_by_role("button", name="Sign in as dev").wait_for()
    page.screenshot(path=tmp_path / "offer.png")
    page.get_by_role("button", name="Sign in as dev").click()
    reader.chat.connected()
    page.reload()
    reader.chat.connected()
    services.user = None  # the session ends by itself: a new one begins by itself
    page.reload()
    reader.chat.connected()


def test_after_a_sign_in_in_another_tab_the_page_goes_on_by_itself(reader: Reader) -> None:
    reader.services.user = None
    reader.visit()
    reader.ask_in_vain("Is it so?")
    other = Fed(reader.context)
    other.page.goto(fed_page.ORIGIN)
    other.submit_credential(fed_page.credential("alice"))
    reader.chat.connected()
    reader.chat.status("queued")
    assert reader.services.askers == ["alice"]
    sync_api.expect(reader.page.locator(".banner")).to_be_hidden()
