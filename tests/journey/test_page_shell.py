"""The chat page in a real browser: it opens without a network, says what it waits for, and can be
used by everyone."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.journey import conftest
from tests.journey.chat_page import DESKTOP, DEVICES, MOBILE, Opener
from tests.journey.conftest import Stack
from tests.journey.fed_chat import Fed
from tests.journey.test_page import handing_out_none
from tests.support import accessibility, fed_page, page_events, page_server

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

# Until the worker that a page brought answers for it.
CONTROLLED = "async () => { await navigator.serviceWorker.ready; }"
# Until the worker of build two has the place of the one before.
REPLACED = """async () => {
  const { installing, waiting } = await navigator.serviceWorker.getRegistration('/');
  return installing === null && waiting === null && await caches.has('tailrace.page.two');
}"""
GONE = """async () => {
  const [worker, kept] = [await navigator.serviceWorker.getRegistration('/'), await caches.keys()];
  return worker === undefined && kept.length === 0;
}"""


def test_a_page_without_a_network_shows_what_is_kept_and_goes_on_when_it_is_back(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = tabs(scripted_stack, **DESKTOP, service_workers="allow")().open()
    chat.ask("Keep this.")
    chat.status("completed")
    text = chat.check_plain()
    chat.page.evaluate(CONTROLLED)
    chat.page.context.set_offline(True)
    chat.page.reload()
    sync_api.expect(chat.page.locator(".question")).to_have_text(["Keep this."])
    assert " ".join(chat.shown.split()) == " ".join(text.split())
    sync_api.expect(chat.page.locator(".status")).to_have_text("Offline")
    sync_api.expect(chat.page.locator("#model")).to_be_visible()  # as it was told last
    chat.ask("Are you there?")
    chat.status("unsent")
    chat.page.context.set_offline(False)
    chat.status("completed")
    chat.check_plain()
    assert chat.complained == []


@pytest.mark.nightly
def test_a_page_without_a_network_names_the_user_until_they_sign_out(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = handing_out_none(tabs(scripted_stack, **DESKTOP, service_workers="allow")())
    page, who = chat.page, chat.page.locator(".account")
    credential = page.get_by_label("Credential")

    def sign_in(subject: str) -> None:
        chat.submit_credential(scripted_stack.token(subject))
        chat.connected()

    def reload_without_a_network() -> None:
        page.context.set_offline(True)
        page.reload()
        sync_api.expect(page.locator(".status")).to_have_text("Offline")

    page.goto(scripted_stack.url)
    sign_in("alice")
    page.evaluate(CONTROLLED)
    reload_without_a_network()
    sync_api.expect(who.locator(".words")).to_have_text("alice")
    page.get_by_role("button", name="Sign out").click()
    sync_api.expect(page.locator(".toast")).to_contain_text("still signed in")
    sync_api.expect(who).to_be_visible()
    page.context.set_offline(False)
    chat.connected()
    page.get_by_role("button", name="Sign out").click()
    sync_api.expect(credential).to_be_visible()
    sync_api.expect(who).to_be_hidden()
    reload_without_a_network()
    assert "alice" not in page.content()
    page.context.set_offline(False)
    sign_in("bob")
    reload_without_a_network()
    sync_api.expect(who.locator(".words")).to_have_text("bob")
    # The session ends elsewhere: with the network back, no user is named any more.
    page.context.clear_cookies()
    page.context.set_offline(False)
    sync_api.expect(credential).to_be_visible()
    sync_api.expect(who).to_be_hidden()
    assert chat.complained == []


def test_a_new_version_is_there_with_the_next_load_and_kept_as_a_whole(
    browser: sync_api.Browser, tmp_path: Path
) -> None:
    context = browser.new_context(**DESKTOP, service_workers="allow")
    page = context.new_page()
    build = "document.documentElement.dataset.build"
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(f"{request.method} {request.url}"))
    with page_server.running() as server:
        server.deploy(page_server.another_build(tmp_path / "one", "one"))
        page.goto(server.url)
        page.evaluate(CONTROLLED)
        server.deploy(page_server.another_build(tmp_path / "two", "two"))
        page.reload()
        assert page.evaluate(build) == "two"
        conftest.wait_for(lambda: page.evaluate(REPLACED), "the new worker is there", 120)
        assert failed == []
        context.set_offline(True)
        page.reload()
        assert page.evaluate(build) == "two"
        context.set_offline(False)
        # A deployment that has no worker any more.
        (tmp_path / "two" / "sw.js").unlink()
        server.deploy(tmp_path / "two")
        page.reload()
        conftest.wait_for(lambda: page.evaluate(GONE), "the worker is gone")
    context.close()


# ---- without a deployment: the services are a script

RICH = """Look:[^1]

```python
print(1)
```

| a | b |
|---|---|
| 1 | 2 |

Then **done**.

[^1]: A note.
"""
EVERYWHERE = pytest.mark.parametrize("device", DEVICES)
LABEL = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"


@pytest.fixture
def fed(
    browser: sync_api.Browser, device: dict[str, Any]
) -> Iterator[tuple[Fed, fed_page.Services, accessibility.Screens]]:
    context = browser.new_context(**device)
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    chat = Fed(context)
    screens = accessibility.Screens(chat.page)
    yield chat, services, screens
    assert chat.complained == []
    context.close()
    screens.check()


FedPage = tuple[Fed, fed_page.Services, accessibility.Screens]


def credential(**claims: Any) -> str:
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{part}.c2ln"


@EVERYWHERE
def test_a_sign_in_that_failed_says_why_where_the_reader_is(fed: FedPage, tmp_path: Path) -> None:
    chat, _, screens = fed
    page = chat.page
    answers: list[int] = []

    def session(route: sync_api.Route) -> None:
        if route.request.method == "GET":
            route.fulfill(json={"subject": None})
        elif answers and answers[0] == 0:
            route.abort("connectionrefused")
        elif answers:
            error = {"message": "no", "type": "x", "param": None, "code": "y"}
            route.fulfill(status=answers[0], json={"error": error}, headers={"retry-after": "30"})
        else:
            route.fulfill(json={"subject": "reader", "token": "token of reader"})

    page.route("**/v1/session", session)
    page.goto(fed_page.ORIGIN)
    field, said = page.get_by_label("Credential"), page.locator(".signin .problem")
    sync_api.expect(field).to_be_focused()
    assert field.get_attribute("aria-invalid") == "false"
    good = credential(sub="reader", exp=4_000_000_000)
    for status, given, why in (
        (401, "hello", "This is not a credential."),
        (401, credential(sub="reader", exp=1_000_000_000), "was valid until Sep 9, 2001"),
        (401, good, "does not accept this credential"),
        (403, good, "does not accept sign-ins from this address"),
        (429, good, "Try again in 30 s."),
        (503, good, "can't check credentials right now"),
        (0, good, "The server can't be reached."),
    ):
        answers[:] = [status]
        chat.submit_credential(given)
        sync_api.expect(said).to_contain_text(why)
        sync_api.expect(field).to_be_focused()
        assert field.get_attribute("aria-invalid") == "true"
        assert "signin-problem" in (field.get_attribute("aria-describedby") or "")
    screens.look("a sign-in that failed")
    screens.measure("a sign-in that failed")
    page.screenshot(path=tmp_path / "signin.png")
    answers.clear()
    chat.submit_credential(good)
    chat.connected()
    sync_api.expect(page.get_by_role("dialog")).to_have_count(0)


@EVERYWHERE
@pytest.mark.nightly
def test_a_new_chat_says_that_no_model_is_ready_until_one_is(fed: FedPage, tmp_path: Path) -> None:
    chat, _, screens = fed
    page, asked = chat.page, list[str]()
    engine: dict[str, Any] = {"state": "loading", "workers": 1, "detail": "reading weights"}

    def ready(route: sync_api.Route) -> None:
        asked.append(engine["state"])
        route.fulfill(status=503, json={"ready": False, "engine": engine})

    page.route("**/ready", ready)
    chat.open()
    state = page.locator(".welcome .engine")
    sync_api.expect(state).to_have_text("The model is loading. You can already ask a question.")
    sync_api.expect(page.locator(".engine-detail")).to_have_text("reading weights")
    screens.look("a model that is loaded")
    screens.measure("a model that is loaded")
    page.screenshot(path=tmp_path / "loading.png")
    engine |= {"state": "none", "detail": ""}
    sync_api.expect(state).to_have_text("No model is ready yet. You can already ask a question.")
    engine |= {"state": "ready"}
    sync_api.expect(state).to_have_text("")
    assert asked.count("ready") == 1
    chat.ask("What is the weather?")
    assert asked.count("ready") <= 2, "only the question that waits asks again"


@EVERYWHERE
def test_a_refused_question_counts_down_and_says_it_once(fed: FedPage, tmp_path: Path) -> None:
    chat, services, screens = fed
    page = chat.page
    chat.open()
    page.evaluate(
        """() => {
            window.heard = [];
            window.seen = [];
            const watch = (selector, into) => new MutationObserver(() => {
                const text = document.querySelector(selector)?.textContent ?? '';
                if (text !== '' && text !== into.at(-1)) into.push(text);
            }).observe(document, { subtree: true, childList: true, characterData: true });
            watch('[aria-live=polite].sr-only', window.heard);
            watch('.note', window.seen);
        }"""
    )
    services.refusals = [(429, "rate_limit_exceeded", "3")]
    chat.ask("Too soon?")
    chat.status("queued")
    again = "The service is busy. Your question is sent again in"
    seen = page.evaluate("window.seen")
    assert [text for text in seen if again in text] == [f"{again} {n} s." for n in (3, 2, 1)]
    assert page.evaluate("window.heard") == [f"{again} 3 s."]
    services.feed(page_events.spoken(("m", RICH)))
    chat.status("completed")
    sync_api.expect(chat.spoken).to_have_text(
        "The answer is complete. Look: Code in python: 1 line. a, b. 1, 2. Then done. 1. A note."
    )
    # A longer wait is the reader's to end.
    services.next_response()
    services.refusals = [(429, "rate_limit_exceeded", "41")]
    chat.ask("Much too soon?")
    chat.status("unsent")
    note = chat.turn.locator(".note")
    sync_api.expect(note).to_contain_text("Try again in 41 s.")
    sync_api.expect(note).to_contain_text("Try again in 40 s.")
    assert [text for text in page.evaluate("window.heard") if " 41 s." in text] == [
        chat.spoken.text_content()
    ]
    page.locator(".turn").first.hover()
    screens.look("answers, and a question that waits")
    screens.measure("answers, and a question that waits")
    page.screenshot(path=tmp_path / "waits.png")
    page.get_by_role("button", name="Try again").last.click()
    chat.status("queued")
    # Headings: the chat, its questions, their answers, what stands in these.
    levels = page.evaluate(
        """() => [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')]
            .filter((each) => each.checkVisibility())
            .map((each) => Number(each.getAttribute('aria-level') ?? each.tagName[1]))"""
    )
    assert levels == [1, 2, 3, 2, 3]


@pytest.mark.parametrize("device", [DESKTOP])
def test_what_is_refused_before_it_was_drawn_is_said(fed: FedPage) -> None:
    chat, services, _ = fed
    chat.open()
    chat.page.evaluate(
        """() => {
            const frame = window.requestAnimationFrame;
            window.requestAnimationFrame = (draw) => setTimeout(() => frame(draw), 1000);
        }"""
    )
    for question, seconds in (("Too soon?", 41), ("And now?", 57)):
        services.refusals = [(429, "rate_limit_exceeded", str(seconds))]
        chat.ask(question)
        said = re.compile(rf"Try again in ({'|'.join(str(seconds - n) for n in range(5))}) s\.")
        sync_api.expect(chat.spoken).to_have_text(said)
        services.next_response()


@EVERYWHERE
@pytest.mark.nightly
def test_deleting_goes_on_with_the_next_chat_and_a_drawer_holds_the_focus(
    fed: FedPage, device: dict[str, Any], tmp_path: Path
) -> None:
    chat, services, screens = fed
    page, side = chat.page, chat.page.get_by_role("navigation", name="Chats")
    menu = page.get_by_role("button", name="Chats", exact=True)
    chat.open()
    for name in ("One", "Two", "Three"):
        page.evaluate("location.hash = ''")
        page.locator(".welcome").wait_for()
        services.next_response()
        chat.ask(name)
        services.feed(page_events.spoken(("m", "Yes.")))
        chat.status("completed")
    if device is MOBILE:
        menu.click()
        sync_api.expect(menu).to_have_attribute("aria-expanded", "true")
        for _ in range(30):  # more than there are stops, so it goes round
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.closest('#side') !== null")
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.querySelector('.scroll').inert")
        page.keyboard.press("Escape")
        sync_api.expect(side).not_to_be_visible()
        sync_api.expect(menu).to_be_focused()
        assert not page.evaluate("document.querySelector('.scroll').inert")
        menu.click()
    screens.look("the list of chats")
    screens.measure("the list of chats")
    page.screenshot(path=tmp_path / "side.png")
    # The newest is first. In the middle, then at the end, then the one on show, which is the last.
    for name, then in (("Two", "One"), ("One", "Three"), ("Three", "New chat")):
        row = side.get_by_role("listitem").filter(has_text=name)
        row.hover()
        row.get_by_role("button", name="Delete chat").click()
        sync_api.expect(row).to_have_count(0)
        assert page.evaluate(LABEL) == then
    sync_api.expect(page.locator(".welcome")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    sync_api.expect(side.get_by_role("listitem")).to_have_count(1)
    page.get_by_role("button", name="Options of Three").click()
    screens.measure("the dialog of a chat")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()

    page.get_by_role("button", name="Keyboard shortcuts").click()
    dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
    sync_api.expect(dialog).to_contain_text("Send the question")
    screens.look("the shortcuts")
    screens.measure("the shortcuts")
    page.screenshot(path=tmp_path / "shortcuts.png")
    dialog.get_by_role("button", name="Close").click()
    if device is DESKTOP:
        page.keyboard.press("?")
        sync_api.expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        page.locator("#question").press("?")
        sync_api.expect(dialog).not_to_be_visible()
