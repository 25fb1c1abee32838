"""The chat page in a real browser: nothing that was said is lost, and what it says of the
connection is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright import sync_api

from tests.journey.chat_page import DEVICES, Chat, Opener, slowly
from tests.journey.conftest import Stack
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

TOO_LONG = "context_length_exceeded"


def questions(chat: Chat) -> list[str]:
    return chat.page.locator(".question").all_text_contents()


def change_question(chat: Chat, place: int, words: str) -> None:
    """In the place of a question that was asked, others words are asked."""
    turn = chat.page.locator(".turn").nth(place)
    turn.hover()
    turn.get_by_role("button", name="Change question").click()
    field = turn.get_by_role("textbox", name="Your question")
    field.fill(words)
    field.press("Enter")


def state(chat: Chat, wanted: str, timeout: float = 60_000) -> None:
    chat.page.wait_for_selector(f'.status[data-state="{wanted}"]', timeout=timeout)


def test_try_again_and_stop_lose_no_answer(chat: Chat) -> None:
    chat.ask("Tell me.")
    chat.status("completed")
    first = chat.check_plain()
    slowly(chat, 2000)
    chat.page.get_by_role("button", name="Try again").click()
    sync_api.expect(chat.answers).to_have_text("2 / 2")
    chat.streaming(20)
    chat.page.keyboard.press("Escape")
    chat.status("cancelled")
    second = chat.check_plain()
    back = chat.turn.get_by_role("button", name="Previous answer")
    back.focus()
    chat.page.keyboard.press("Enter")
    sync_api.expect(chat.answers).to_have_text("1 / 2")
    chat.status("completed")
    assert " ".join(chat.shown.split()) == " ".join(first.split())
    # The button cannot be pressed any more, so the answer has the focus; forwards is beside it.
    assert chat.page.evaluate("document.activeElement.className") == "answer"
    chat.page.reload()
    chat.connected()
    sync_api.expect(chat.answers).to_have_text("1 / 2")
    chat.turn.get_by_role("button", name="Next answer").click()
    chat.status("cancelled")
    assert " ".join(chat.shown.split()) == " ".join(second.split())
    assert chat.complained == []


@pytest.mark.nightly
def test_a_question_in_other_words_keeps_all_that_followed_the_first_ones(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat = opener().open()
    for question in ("One?", "Two?"):
        chat.ask(question)
        chat.status("completed")
    change_question(chat, 0, "One, in other words?")
    sync_api.expect(chat.page.locator(".question")).to_have_text(["One, in other words?"])
    chat.status("completed")
    chat.ask("Then?")
    chat.status("completed")
    assert chat.server_says()["conversation"] is not None
    other = opener().open(chat.page.url.removeprefix(chat.stack.url))
    assert questions(other) == ["One, in other words?", "Then?"]
    chat.page.locator(".turn").first.get_by_role(
        "button", name="Previous version of the question"
    ).click()
    for each in (chat, other):
        sync_api.expect(each.page.locator(".question")).to_have_text(["One?", "Two?"])
    chat.page.locator(".turn").last.hover()
    chat.turn.get_by_role("button", name="Change question").click()
    chat.page.keyboard.press("Escape")
    assert questions(chat) == ["One?", "Two?"]
    label = "document.activeElement.getAttribute('aria-label')"
    assert chat.page.evaluate(label) == "Change question"
    assert chat.complained == []


def test_versions_of_a_question_and_answers_to_it_are_counted_apart(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = tabs(scripted_stack)().open()

    def on_show(tab: Chat, question: str, wording: str, answer: str) -> str | None:
        """Waits until these are shown: the question, and both counters (empty: none)."""
        sync_api.expect(tab.page.locator(".question")).to_have_text([question])
        for counter, wanted in ((tab.wordings, wording), (tab.answers, answer)):
            if wanted:
                sync_api.expect(counter).to_have_text(wanted)
            else:
                sync_api.expect(counter).to_have_count(0)
        tab.status("completed")
        return tab.turn.get_attribute("data-turn")

    chat.ask("One?")
    first = on_show(chat, "One?", "", "")
    chat.page.get_by_role("button", name="Try again").click()
    second = on_show(chat, "One?", "", "2 / 2")
    chat.turn.get_by_role("button", name="Previous answer").click()
    assert on_show(chat, "One?", "", "1 / 2") == first
    change_question(chat, 0, "In other words?")
    on_show(chat, "In other words?", "2 / 2", "")
    chat.page.get_by_role("button", name="Try again").click()
    last = on_show(chat, "In other words?", "2 / 2", "2 / 2")
    chat.turn.get_by_role("button", name="Previous version of the question").focus()
    chat.page.keyboard.press("Enter")
    assert on_show(chat, "One?", "1 / 2", "1 / 2") == first, "the answer that was seen last"
    assert chat.page.evaluate("document.activeElement.className") == "answer"
    chat.page.reload()
    chat.connected()
    other = tabs(scripted_stack)().open(chat.page.url.removeprefix(chat.stack.url))
    for each in (chat, other):
        assert on_show(each, "One?", "1 / 2", "1 / 2") == first
    other.turn.get_by_role("button", name="Next answer").click()
    for each in (chat, other):
        assert on_show(each, "One?", "1 / 2", "2 / 2") == second
    chat.turn.get_by_role("button", name="Next version of the question").click()
    for each in (chat, other):
        assert on_show(each, "In other words?", "2 / 2", "2 / 2") == last
    assert chat.complained == other.complained == []


def test_what_is_asked_while_an_answer_runs_is_sent_when_it_has_ended(chat: Chat) -> None:
    slowly(chat, 150)
    chat.ask("First.")
    chat.streaming()
    stop = chat.page.get_by_role("button", name="Stop")
    sync_api.expect(stop).to_be_visible()
    chat.ask("Second.")
    chat.ask("Never.")
    assert chat.turn.get_attribute("data-status") == "next"
    sync_api.expect(chat.turn.locator(".note")).to_contain_text("when the answer above is complete")
    chat.turn.get_by_role("button", name="Edit").click()
    assert chat.page.input_value("#question") == "Never."
    chat.page.fill("#question", "")
    chat.page.reload()  # the question waits through it
    chat.connected()
    chat.status("completed")
    assert questions(chat) == ["First.", "Second."]
    first = chat.page.locator(".turn").first
    assert first.get_attribute("data-status") == "completed"
    assert chat.complained == []


def test_drafts_stay_with_their_chat(chat: Chat) -> None:
    chat.ask("A chat.")
    chat.status("completed")
    chat.page.fill("#question", "half a ques")
    chat.page.get_by_role("button", name="New chat").first.click()
    assert chat.page.input_value("#question") == ""
    chat.page.fill("#question", "something else")
    chat.page.reload()
    chat.connected()
    assert chat.page.input_value("#question") == "something else"
    chat.page.locator(".conversations a").first.click()
    assert chat.page.input_value("#question") == "half a ques"
    chat.page.press("#question", "Enter")
    chat.status("completed")
    chat.page.reload()
    chat.connected()
    assert chat.page.input_value("#question") == ""


def test_offline_is_said_at_once_and_what_is_asked_meanwhile_is_sent_by_itself(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = tabs(scripted_stack)().open()
    slowly(chat, 400)
    chat.ask("Go on without me.")
    chat.streaming()
    chat.page.context.set_offline(True)
    state(chat, "offline", timeout=15_000)
    sync_api.expect(chat.page.locator(".status")).to_have_text("Offline")
    chat.ask("Are you there?")
    chat.page.context.set_offline(False)
    state(chat, "open")
    chat.status("completed")
    assert questions(chat) == ["Go on without me.", "Are you there?"]
    chat.check_exact()
    chat.page.context.set_offline(True)
    state(chat, "offline", timeout=15_000)
    chat.ask("And now?")
    chat.status("unsent")
    sync_api.expect(chat.turn.locator(".note")).to_contain_text("sent when the connection is back")
    chat.page.context.set_offline(False)
    chat.status("completed")
    assert len(questions(chat)) == 3


def test_another_user_of_the_browser_sees_nothing_and_the_first_one_finds_all(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat, other = opener().open(), opener()
    chat.ask("A secret of mine.")
    chat.status("completed")
    address = chat.page.url
    other.open(address.removeprefix(chat.stack.url))
    sync_api.expect(other.page.locator(".question")).to_have_text(["A secret of mine."])
    chat.page.get_by_role("button", name="Sign out").click()
    for each in (chat, other):
        each.page.wait_for_selector(".welcome", state="attached")
        assert "secret" not in each.page.content()

    def sign_in(subject: str) -> None:
        chat.submit_credential(chat.stack.token(subject))
        chat.connected()

    sign_in("bob")
    assert "secret" not in chat.page.content()
    chat.page.goto(address)
    chat.page.reload()
    chat.connected()
    assert "secret" not in chat.page.content()
    chat.ask("Mine alone.")
    chat.status("completed")
    chat.page.get_by_role("button", name="Sign out").click()
    sign_in("dev")
    sync_api.expect(chat.page.locator(".conversations .words")).to_have_text(["A secret of mine."])


def test_a_question_asked_after_the_session_ended_is_sent_after_the_sign_in(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = tabs(scripted_stack)().open()
    gone: dict[str, Any] = {"error": {"message": "no", "type": "x", "code": "invalid_api_key"}}
    chat.page.route("**/v1/responses", lambda route: route.fulfill(status=401, json=gone))
    chat.page.route("**/v1/session", lambda route: route.fulfill(json={"subject": None}))
    chat.page.route("**/dev/credential", lambda route: route.fulfill(status=404, json={}))
    chat.ask("Who am I?")
    chat.page.get_by_label("Credential").wait_for()
    chat.page.wait_for_selector('.turn[data-status="unsent"]', state="attached")
    for path in ("responses", "session"):
        chat.page.unroute(f"**/v1/{path}")
    chat.submit_credential(chat.stack.token("dev"))
    chat.status("completed")
    assert questions(chat) == ["Who am I?"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.nightly
def test_a_chat_that_is_too_long_goes_on_without_its_oldest_messages_or_as_a_new_one(
    browser: sync_api.Browser, device: dict[str, Any]
) -> None:
    context = browser.new_context(**device)
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    chat = Fed(context)
    chat.open()
    services.refusals = [(400, TOO_LONG, "0")]
    chat.ask("One more thing.")
    chat.status("unsent")
    screens = accessibility.Screens(chat.page)
    screens.look("too long")
    chat.page.get_by_role("button", name="Leave out older messages").click()
    chat.status("queued")
    assert services.asked[-1]["truncation"] == "auto"
    chat.page.get_by_role("button", name="Change question").click()
    screens.look("a question that is changed")
    services.refusals = [(400, TOO_LONG, "0")]
    field = chat.turn.get_by_role("textbox", name="Your question")
    field.fill("Other words.")
    field.press("Enter")
    chat.status("unsent")
    sync_api.expect(chat.wordings).to_have_text("2 / 2")
    screens.look("versions")
    screens.measure("versions")
    chat.page.get_by_role("button", name="New chat with this question").click()
    assert chat.page.input_value("#question") == "Other words."
    sync_api.expect(chat.page.locator(".welcome")).to_be_visible()
    context.close()
    screens.check()
