"""The chat page in a real browser, against a running stack: what it shows is held against what the
server says."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright import sync_api

from tailrace.local import ports
from tests.journey import conftest
from tests.journey.chat_page import (
    DESKTOP,
    MOBILE,
    Chat,
    Opener,
    briefly,
    copying,
    overflow,
    slowly,
    squeezed,
)
from tests.journey.conftest import ROOT, Stack
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page, local, page_events
from tests.support import gateway_process as gp
from worker.engines import scripted

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

QUESTION = "Explain quantum entanglement."


def only_grew(texts: list[str]) -> None:
    """Nothing that was shown was taken back, doubled or replaced: each text continues the one
    before."""
    for before, after in itertools.pairwise(texts):
        assert after.startswith(before.rstrip()), f"{before[-40:]!r} became {after[-40:]!r}"


# ---- the whole path on the real model


@pytest.mark.engine
@pytest.mark.timeout(1_200)  # with the start of vLLM, minutes where others want the cores
class TestRealModel:
    """What a newcomer does after `make up`. The model's own words, so only their identity is
    judged."""

    def test_a_question_is_answered_while_it_streams(
        self, tabs: Callable[..., Opener], stack: Stack, tmp_path: Path
    ) -> None:
        chat = tabs(stack)().open()
        briefly(chat, 100)
        chat.ask(QUESTION)
        chat.streaming(40)
        chat.page.screenshot(path=tmp_path / "streaming.png")
        chat.status("completed", "incomplete", timeout=900_000)
        assert chat.check_exact()
        assert re.search(
            r"first token \d.* · .*\d tokens/s · \d+ tokens",
            chat.turn.locator(".pace").text_content() or "",
        )
        assert chat.complaints == []

    @pytest.mark.nightly
    def test_it_stops_and_goes_on_from_there(
        self, tabs: Callable[..., Opener], stack: Stack
    ) -> None:
        chat = tabs(stack)().open()
        chat.ask("Write a very long story about a river.")
        chat.streaming(30)
        chat.page.get_by_role("button", name="Stop").click()
        chat.status("cancelled")
        chat.check_exact()
        briefly(chat)
        chat.ask("Go on.")
        chat.status("completed", "incomplete")
        second = chat.server_says()
        turns = chat.turns_at_the_server()
        assert [turn["id"] for turn in turns] == [turns[1]["parent"], second["id"]]

    @pytest.mark.nightly
    def test_a_reload_in_the_middle_and_a_second_tab_show_the_same_whole_answer(
        self, tabs: Callable[..., Opener], stack: Stack
    ) -> None:
        opener = tabs(stack)
        chat = opener().open()
        briefly(chat)
        chat.ask("Explain how a water mill works, step by step.")
        chat.streaming(60)
        chat.page.reload()
        other = opener().open(
            "/" + chat.page.url.partition("/")[2].partition("/")[2].partition("/")[2]
        )
        for tab in (chat, other):
            tab.status("completed", "incomplete")
        assert chat.check_exact() == other.check_exact()
        assert chat.shown == other.shown
        assert chat.complaints + other.complaints == []


# ---- streaming, stopping, coming back (scripted engine: every token known)


def test_an_answer_grows_word_by_word_and_is_the_servers(chat: Chat) -> None:
    slowly(chat, 120)
    chat.ask(QUESTION)
    chat.status("completed")
    text = chat.check_plain()
    shown = chat.page.evaluate("window.shown")
    only_grew(shown)
    assert len(shown) > 2, "it grew in steps"
    assert text
    assert chat.turn.locator(".question").text_content() == QUESTION
    assert chat.complaints == []


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stopping_ends_the_answer_on_the_server_too(chat: Chat, how: str) -> None:
    slowly(chat, 4000, 20)
    chat.ask("Count to four thousand.")
    chat.streaming(20)
    if how == "button":
        chat.page.get_by_role("button", name="Stop").click()
    else:
        chat.page.keyboard.press("Escape")
    chat.status("cancelled")
    assert "Stopped." in (chat.turn.locator(".note").text_content() or "")
    assert chat.server_says()["status"] == "cancelled"
    chat.check_plain()
    assert chat.page.get_by_role("button", name="Send").is_visible()


def test_an_answer_that_was_cut_off_says_so(chat: Chat) -> None:
    slowly(chat, 100_000, 0)
    chat.ask("Never stop.")
    chat.status("incomplete")
    assert chat.server_says()["incomplete_details"] == {"reason": "max_output_tokens"}
    sync_api.expect(chat.turn.locator(".note")).to_have_text(
        "Cut off: the length limit was reached."
    )
    chat.check_plain()


def test_reloads_in_the_middle_of_an_answer_lose_and_repeat_nothing(chat: Chat) -> None:
    slowly(chat, 400, pace_ms=40)
    chat.ask("Tell me much.")
    for characters in (1, 200, 600, 1100):
        chat.streaming(characters)
        before = chat.page.evaluate("window.shown.at(-1)")
        chat.page.reload()
        first = chat.page.wait_for_function(
            "() => window.shown.find(text => text.length > 0)"
        ).json_value()
        # Snapshots are written a few times a second: what the reload shows first is what stood
        # there a moment ago.
        assert before.startswith(first.rstrip()) or first.startswith(before.rstrip())
        chat.connected()
        only_grew(chat.page.evaluate("window.shown"))
    chat.status("completed")
    only_grew(chat.page.evaluate("window.shown"))
    chat.check_plain()
    assert chat.page.locator(".turn").count() == 1
    assert chat.complaints == []


@pytest.mark.nightly
def test_an_answer_that_ended_while_the_page_was_closed_is_there_when_it_opens(chat: Chat) -> None:
    slowly(chat, 150)
    chat.ask("Tell me something.")
    chat.streaming(10)
    address = chat.page.url
    rid = chat.kept()["answer"]["responseId"]
    chat.page.goto("about:blank")
    conftest.wait_for(
        lambda: (
            httpx.get(f"{chat.stack.api}/responses/{rid}", headers=chat.stack.headers)
            .json()
            .get("status")
            == "completed"
        ),
        "the answer ends unseen",
    )
    chat.page.goto(address)
    chat.status("completed")
    chat.check_plain()


def test_a_second_tab_shows_the_answer_live_and_can_stop_it(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    one = opener().open()
    slowly(one, 4000, 20)
    one.ask("Count to four thousand.")
    one.streaming(30)
    two = opener().open("/" + one.page.url.split("/", 3)[3])
    two.streaming(60)
    length = len(two.shown)
    two.streaming(length + 60)
    two.page.get_by_role("button", name="Stop").click()
    for tab in (one, two):
        tab.status("cancelled")
    assert one.check_plain() == two.check_plain()
    one.page.unroute("**/v1/responses")
    one.ask("And a short one.")
    for tab in (one, two):
        sync_api.expect(tab.page.locator(".turn")).to_have_count(2)
        tab.status("completed")
    assert one.check_plain() == two.check_plain()
    assert one.complaints + two.complaints == []


@pytest.fixture
def shrinking_stack(tmp_path: Path) -> Iterator[Stack]:
    """Two push services to lose. A stack of its own: nothing brings them back."""
    options = ("--pushes", "2", "--no-restart")
    with conftest.running(tmp_path, *options, engine="scripted") as started:
        yield started


@pytest.mark.nightly
def test_answers_go_on_until_only_the_gateway_is_left(
    tabs: Callable[..., Opener], shrinking_stack: Stack
) -> None:
    """SIGTERM drains: the page changes over before its socket closes. SIGKILL cuts it. The gateway
    delivers too, when no push service is left."""
    opener = tabs(shrinking_stack)
    watching = [opener().open() for _ in range(3)]  # each begins at a push service by chance
    for number in (signal.SIGTERM, signal.SIGKILL):
        for chat in watching:
            slowly(chat, 500)
            chat.page.get_by_role("button", name="New chat").first.click()
            chat.ask("Tell me very much.")
        for chat in watching:
            chat.streaming(30)
        leaving = next(row["name"] for row in shrinking_stack.processes("push") if row["ready"])
        shrinking_stack.kill(leaving, number)
        for chat in watching:
            chat.status("completed")
            chat.check_plain()
            chat.connected()
            assert chat.complained == []
    for chat in watching:
        chat.page.reload()
        chat.connected()
        chat.check_plain()


# ---- asking when things go wrong


def test_a_question_whose_acceptance_was_lost_is_not_asked_twice(chat: Chat) -> None:
    accepted: list[str] = []

    def lose(route: sync_api.Route) -> None:
        accepted.append(route.fetch().json()["id"])
        if len(accepted) < 3:
            route.abort("connectionreset")
        else:
            route.continue_()

    chat.page.route("**/v1/responses", lose)
    chat.ask("Once.")
    chat.status("completed")
    # The feed may tell of it before it is sent again.
    assert set(accepted) == {chat.kept()["answer"]["responseId"]}
    assert chat.page.locator(".turn").count() == 1


def test_a_question_that_cannot_be_sent_is_kept_and_sent_once_on_retry(chat: Chat) -> None:
    chat.page.route("**/v1/responses", lambda route: route.abort("connectionrefused"))
    chat.ask("Are you there?")
    chat.status("unsent")
    assert "can't be reached" in (chat.turn.locator(".note").text_content() or "")
    chat.page.unroute("**/v1/responses")
    chat.page.get_by_role("button", name="Try again").click()
    chat.status("completed")
    chat.check_plain()
    assert chat.page.locator(".turn").count() == 1
    assert chat.page.locator(".question").all_text_contents() == ["Are you there?"]


def test_a_question_that_is_refused_says_why_and_can_be_changed(chat: Chat) -> None:
    chat.ask("far too long " * 20_000)
    chat.status("unsent")
    assert chat.turn.locator(".note").text_content()
    assert not chat.turn.get_by_role("button", name="Try again").is_visible()
    chat.page.get_by_role("button", name="Edit").click()
    assert (chat.page.input_value("#question")).startswith("far too long")
    assert chat.page.locator(".turn").count() == 0
    chat.ask("Shorter.")
    chat.status("completed")


def test_a_failed_answer_can_be_asked_for_again(chat: Chat) -> None:
    def fault(route: sync_api.Route) -> None:
        body: Any = route.request.post_data_json
        body["metadata"] |= {"script_fault": "error", "script_fault_at": "0"}
        route.continue_(post_data=json.dumps(body))

    chat.page.route("**/v1/responses", fault)
    chat.ask("Fail, please.")
    chat.status("failed")
    assert "failed" in (chat.turn.locator(".note").text_content() or "").lower() or "tried" in (
        chat.turn.locator(".note").text_content() or ""
    )
    chat.page.unroute("**/v1/responses")
    chat.page.get_by_role("button", name="Try again").click()
    chat.status("completed")
    chat.check_plain()
    assert chat.page.locator(".turn").count() == 1


@pytest.mark.nightly
def test_a_question_waits_in_the_queue_while_no_worker_runs(chat: Chat) -> None:
    workers = [row["name"] for row in chat.stack.processes("worker")]
    for name in workers:
        chat.stack.kill(name, signal.SIGSTOP)
    try:
        chat.ask("Anybody there?")
        chat.status("queued")
        sync_api.expect(chat.turn.locator(".note")).to_contain_text("queue")
    finally:
        for name in workers:
            chat.stack.kill(name, signal.SIGCONT)
    chat.status("completed", timeout=120_000)
    chat.check_plain()


# ---- text is data

# The scripted engine quotes the first 39 characters of the question, so each payload comes back as
# an answer too.
PAYLOADS = [
    "<script>window.hit=1</script>",
    "<img src=x onerror=hit=1>",
    "<svg onload=hit=1>",
    "<iframe src=javascript:hit=1>",
    "<details open ontoggle=hit=1>",
    "<a href=javascript:hit=1>x</a>",
    "[x](javascript:hit=1)",
    "![x](http://127.0.0.1:9/p.png)",
    "&lt;img src=x onerror=hit=1&gt;",
    "<style>*{display:none}</style>",
    "<base href=//127.0.0.1:9/>",
    "<meta http-equiv=refresh content=0>",
    "<form><button formaction=javascript:1>",
    '"><img src=x onerror=hit=1>',
    "\u202e<b>\u0000\u200d</b>\u001b[31m",
]
RISKY = (
    "script, img, svg, iframe, details, style, base, meta, form, object, embed, b, "
    "[onerror], [onload], [style], a[href^='javascript']"
)


def test_what_people_and_models_write_is_shown_and_never_run(chat: Chat) -> None:
    fetched: list[str] = []
    chat.page.on("request", lambda request: fetched.append(request.url))
    for payload in PAYLOADS:
        chat.ask(payload)
        chat.status("completed")
        chat.check_exact()
        assert chat.page.evaluate("window.hit") is None, payload
        for part in (".question", ".prose", ".conversations .words", ".heading"):
            assert chat.page.locator(part).locator(RISKY).count() == 0, (payload, part)
        shown = chat.turn.locator(".question").text_content() or ""
        assert squeezed(payload) in squeezed(shown)
    assert not [url for url in fetched if "127.0.0.1:9" in url]
    assert chat.complaints == []


def test_the_page_allows_nothing_but_its_own_files(chat: Chat) -> None:
    policy = httpx.get(chat.stack.url + "/").headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    # The inline handler, were it allowed, would run before the listener.
    chat.page.evaluate(
        """() => new Promise(failed => {
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror="window.hit=1">');
            document.body.lastElementChild.addEventListener('error', () => failed());
            document.body.insertAdjacentHTML('beforeend', '<div style="color:red">x</div>');
        })"""
    )
    assert chat.page.evaluate("window.hit") is None


def test_a_credential_in_the_address_leaves_it_at_once(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = tabs(scripted_stack)()
    chat.page.goto(f"{scripted_stack.url}/#credential={scripted_stack.token('someone')}")
    chat.page.get_by_role("button", name="Do not sign in").click()
    chat.connected()
    assert "credential" not in chat.page.url
    chat.page.go_back()
    assert "credential" not in chat.page.url


def handing_out_none(chat: Chat) -> Chat:
    """As on a deployment whose gateways hand out no credentials."""
    chat.page.route(
        "**/dev/credential",
        lambda route: route.fulfill(status=404, json={"error": {"message": "not found"}}),
    )
    return chat


def test_a_link_changes_who_the_reader_is_only_when_the_reader_agrees(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = handing_out_none(tabs(scripted_stack)())
    who, page = chat.page.locator(".account"), chat.page
    page.goto(f"{scripted_stack.url}/#credential={scripted_stack.token('alice')}")
    page.get_by_role("button", name="Sign in as alice").click()
    chat.connected()
    sync_api.expect(who).to_contain_text("alice")
    page.goto("about:blank")
    page.goto(f"{scripted_stack.url}/#credential={scripted_stack.token('mallory')}")
    sync_api.expect(page.get_by_role("dialog")).to_contain_text("You are signed in as alice.")
    page.get_by_role("button", name="Stay alice").click()
    chat.connected()
    sync_api.expect(who).to_contain_text("alice")
    chat.ask("Who am I?")
    chat.status("completed")
    chat.check_plain()
    # What a script of the page could find holds neither the credential nor the session.
    found = page.evaluate("JSON.stringify([Object.entries(localStorage), document.cookie])")
    assert ".eyJ" not in found
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert cookie["value"] not in found
    theirs = {"Authorization": f"Bearer {scripted_stack.token('mallory')}"}
    url = f"{scripted_stack.api}/responses/{chat.kept()['answer']['responseId']}"
    assert httpx.get(url, headers=theirs).status_code == 404


def test_after_a_sign_out_nothing_is_asked_until_the_next_sign_in(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = handing_out_none(tabs(scripted_stack)())
    page = chat.page
    page.goto(f"{scripted_stack.url}/#credential={scripted_stack.token('alice')}")
    page.get_by_role("button", name="Sign in as alice").click()
    chat.connected()
    page.get_by_role("button", name="Sign out").click()
    field = page.get_by_label("Credential")
    sync_api.expect(field).to_be_visible()
    assert page.request.get(f"{scripted_stack.api}/session").json()["subject"] is None
    page.reload()
    sync_api.expect(field).to_be_visible()
    chat.submit_credential(scripted_stack.token("bob"))
    chat.connected()
    sync_api.expect(page.locator(".account")).to_contain_text("bob")


def test_without_a_credential_the_page_asks_for_one(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    """As on a deployment that hands out none."""
    chat = handing_out_none(tabs(scripted_stack)())
    chat.page.goto(scripted_stack.url)
    field = chat.page.get_by_label("Credential")
    chat.submit_credential("not.a.credential")
    sync_api.expect(field).to_be_visible()
    chat.submit_credential(scripted_stack.token("someone"))
    chat.connected()
    chat.ask("Who am I?")
    chat.status("completed")
    chat.check_plain()
    mine = httpx.get(
        f"{scripted_stack.api}/responses/{chat.kept()['answer']['responseId']}",
        headers=scripted_stack.headers,
    )
    assert mine.status_code == 404


def under_a_new_credential(
    chat: Chat, stack: Stack, slow: Callable[[Chat, int, int], None]
) -> None:
    """The credential expires while an answer comes; with another one of the same user it goes on.

    `slow`: tells the scripted engine how many tokens, and the ms between them.
    """
    short = stack.command("token", "--sub", "someone", "--ttl", "20s").strip()
    chat.page.goto(f"{stack.url}/#credential={short}")
    chat.page.get_by_role("button", name="Sign in as someone").click()
    chat.connected()
    slow(chat, 900, 30)
    chat.ask("Tell me very much.")
    chat.streaming(10)
    chat.submit_credential(stack.token("someone"))
    chat.connected()
    chat.streaming(len(chat.shown) + 50)
    chat.status("completed")
    only_grew(chat.page.evaluate("window.shown"))
    chat.check_plain()


@pytest.mark.nightly
def test_an_answer_goes_on_under_a_new_credential_when_the_old_one_expires(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    under_a_new_credential(handing_out_none(tabs(scripted_stack)()), scripted_stack, slowly)


# ---- for everyone


@pytest.mark.nightly
def test_it_fits_a_phone(tabs: Callable[..., Opener], scripted_stack: Stack) -> None:
    chat = tabs(scripted_stack, **MOBILE)().open()
    assert overflow(chat.page) == 0
    chat.ask("`" + "x" * 300 + "` and " + "y" * 300)
    chat.status("completed")
    assert overflow(chat.page) == 0
    box = chat.page.locator(".composer").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] + box["height"] <= 844
    assert not chat.page.get_by_role("navigation", name="Chats").is_visible()
    chat.page.get_by_role("button", name="Chats", exact=True).click()
    sync_api.expect(chat.page.get_by_role("navigation", name="Chats")).to_be_visible()
    for button in chat.page.get_by_role("navigation").get_by_role("button").all():
        size = button.bounding_box()
        assert size is not None
        assert size["height"] >= 28
    chat.page.get_by_role("button", name="New chat").first.click()
    sync_api.expect(chat.page.get_by_role("navigation", name="Chats")).not_to_be_visible()
    sync_api.expect(chat.page.locator(".welcome")).to_be_visible()


@pytest.mark.nightly
def test_everything_can_be_done_from_the_keyboard(chat: Chat) -> None:
    slowly(chat, 4000, 20)
    keyboard = chat.page.keyboard
    assert chat.page.evaluate("document.activeElement.id") == "question"
    keyboard.type("first line")
    keyboard.press("Shift+Enter")
    keyboard.type("second line")
    keyboard.press("Enter")
    assert chat.turn.locator(".question").text_content() == "first line\nsecond line"
    chat.streaming(10)
    keyboard.press("Escape")
    chat.status("cancelled")
    reached = set()
    chat.page.evaluate("document.activeElement.blur()")
    for _ in range(20):
        keyboard.press("Tab")
        reached.add(
            chat.page.evaluate(
                "document.activeElement.getAttribute('aria-label') || "
                "document.activeElement.textContent.trim()"
            )
        )
        outline = chat.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        inside = chat.page.evaluate("document.activeElement.matches('textarea, body')")
        assert outline != "none" or inside, "focus must be seen"
    assert {
        "Skip to the question",
        "New chat",
        "Delete chat",
        "Copy answer",
        "Try again",
        "Your question",
    } <= reached
    keyboard.press("Control+Shift+O")
    sync_api.expect(chat.page.locator(".welcome")).to_be_visible()
    chat.page.evaluate("document.activeElement.blur()")
    keyboard.press("/")
    assert chat.page.evaluate("document.activeElement.id") == "question"
    assert chat.page.input_value("#question") == ""


@pytest.mark.nightly
def test_what_happens_is_said_to_those_who_do_not_see_it(chat: Chat) -> None:
    slowly(chat, 60)
    chat.ask("Speak.")
    live = chat.page.locator("[aria-live=polite].sr-only")
    sync_api.expect(live).to_have_text("The answer begins.")
    assert chat.turn.get_attribute("aria-busy") == "true"
    chat.status("completed")
    sync_api.expect(live).to_contain_text("The answer is complete.")
    assert chat.turn.get_attribute("aria-busy") == "false"
    unnamed = chat.page.evaluate(
        """() => [...document.querySelectorAll('button, a, textarea, select')]
            .filter(e => !(
                e.getAttribute('aria-label') || e.labels?.length || e.textContent.trim()
            )).length"""
    )
    assert unnamed == 0


@pytest.mark.nightly
def test_the_reader_can_look_back_while_it_streams(chat: Chat) -> None:
    slowly(chat, 7500, 25)
    chat.ask("Tell me very much.")
    chat.page.wait_for_function("() => document.querySelector('.scroll').scrollTop > 300")
    chat.page.mouse.move(700, 300)
    chat.page.mouse.wheel(0, -200)
    sync_api.expect(chat.page.get_by_role("button", name="Jump to the latest text")).to_be_visible()
    chat.page.wait_for_timeout(300)
    held = chat.page.evaluate("document.querySelector('.scroll').scrollTop")
    length = len(chat.shown)
    chat.streaming(length + 500)
    assert chat.page.evaluate("document.querySelector('.scroll').scrollTop") == held
    chat.page.get_by_role("button", name="Jump to the latest text").click()
    chat.page.wait_for_timeout(800)
    left = (
        "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - "
        "clientHeight)(document.querySelector('.scroll'))"
    )
    for _ in range(5):
        assert chat.page.evaluate(left) < 60
        chat.page.wait_for_timeout(100)
    chat.page.keyboard.press("Escape")
    chat.status("cancelled")


@pytest.mark.nightly
def test_light_and_dark_follow_the_system_until_chosen(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    chat = tabs(scripted_stack, **(DESKTOP | {"color_scheme": "dark"}))().open()
    dark = chat.page.evaluate(ground)
    chat.page.get_by_role("button", name="System theme").click()
    light = chat.page.evaluate(ground)
    assert light != dark
    chat.page.reload()
    assert chat.page.evaluate(ground) == light


def test_conversations_are_kept_listed_deleted_and_brought_back(chat: Chat) -> None:
    for question in ("The first thing.", "The second thing."):
        chat.page.get_by_role("button", name="New chat").first.click()
        chat.ask(question)
        chat.status("completed")
    chat.page.reload()
    rows = chat.page.locator(".conversations .words")
    sync_api.expect(rows).to_have_text(["The second thing.", "The first thing."])
    rows.nth(1).click()
    sync_api.expect(chat.page.locator(".question")).to_have_text("The first thing.")
    chat.page.go_back()
    sync_api.expect(chat.page.locator(".question")).to_have_text("The second thing.")
    chat.page.locator(".conversations li").nth(1).hover()
    chat.page.get_by_role("button", name="Delete chat").nth(1).click()
    sync_api.expect(rows).to_have_text(["The second thing."])
    chat.page.get_by_role("button", name="Undo").click()
    sync_api.expect(rows).to_have_text(["The second thing.", "The first thing."])


@pytest.mark.nightly
def test_an_answer_can_be_copied(
    tabs: Callable[..., Opener], scripted_stack: Stack, browser: sync_api.Browser
) -> None:
    chat = tabs(scripted_stack)()
    chat.page.context.grant_permissions(
        ["clipboard-read", "clipboard-write"], origin=scripted_stack.url
    )
    chat.open()
    chat.ask("Copy me.")
    chat.status("completed")
    chat.page.get_by_role("button", name="Copy answer").click()
    sync_api.expect(chat.page.get_by_role("button", name="Copied")).to_be_visible()
    assert chat.page.evaluate("navigator.clipboard.readText()") == chat.check_plain()


@pytest.mark.nightly
def test_a_conversation_goes_on_when_the_log_forgot_it(chat: Chat) -> None:
    chat.ask("The first thing.")
    chat.status("completed")
    rid = chat.kept()["answer"]["responseId"]
    session = chat.page.request.get(f"{chat.stack.api}/session").json()
    gone = chat.page.request.delete(
        f"{chat.stack.api}/responses/{rid}", headers={"x-tailrace-session": session["token"]}
    )
    assert gone.status == 200, gone.text()
    chat.ask("The second thing.")
    chat.status("completed")
    assert chat.check_plain()


# ---- reasoning and calls of tools (events as the services send them, fed by the test)

ITEMS = page_events.answered(
    "<rI think.\nTwice.<mLet me < *see*.<cgeo__weather|"
    '{"city":"Zürich","n":12345678901234567890,"in":[1]}<e<cshow|{"a":"</pre><b>"}<e<mSo.',
    takeover=5,
)
INDENTED = '{\n  "city": "Zürich",\n  "n": 12345678901234567890,\n  "in": [\n    1\n  ]\n}'


def number_of(kind: str, nth: int = 0) -> int:
    """The number of the nth event of a type."""
    return [n for n, event in enumerate(ITEMS) if event["type"] == f"response.{kind}"][nth]


@pytest.fixture
def fed(browser: sync_api.Browser) -> Iterator[tuple[Fed, fed_page.Services]]:
    context = browser.new_context(**DESKTOP)
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    chat = Fed(context)
    chat.open()
    chat.ask("What is the weather?")
    yield chat, services
    assert chat.complained == []
    context.close()


FedPage = tuple[Fed, fed_page.Services]


def test_thoughts_are_shown_until_the_answer_begins_and_can_be_opened_again(fed: FedPage) -> None:
    chat, services = fed
    begins = number_of("output_item.added", 1)
    services.feed(ITEMS[: begins - 3])
    sync_api.expect(chat.thinking.locator(".thoughts")).to_have_text("I think.\nTwice.")
    sync_api.expect(chat.thinking).to_have_attribute("open", "")
    sync_api.expect(chat.spoken).to_have_text("The model is thinking.")
    assert not chat.turn.locator(".note").is_visible()
    services.feed(ITEMS[begins - 3 : begins + 3])
    sync_api.expect(chat.turn.locator(".prose")).to_have_text(re.compile("^L"))
    assert chat.thinking.get_attribute("open") is None
    sync_api.expect(chat.spoken).to_have_text("The answer begins.")
    chat.thinking.locator("summary").focus()
    chat.page.keyboard.press("Enter")
    sync_api.expect(chat.thinking.locator(".thoughts")).to_be_visible()
    services.feed(ITEMS[begins + 3 :])
    chat.status("completed")
    sync_api.expect(chat.thinking.locator(".thoughts")).to_be_visible()  # the reader decided


def test_a_call_grows_is_laid_out_when_it_is_whole_and_waits_for_its_output(fed: FedPage) -> None:
    chat, services = fed
    half = number_of("function_call_arguments.delta", 4)
    services.feed(ITEMS[: half + 1])
    call = chat.calls.first
    sync_api.expect(call.locator("pre")).to_have_text(re.compile(r'^\{"city":"Z'))
    sync_api.expect(call.locator(".call-name")).to_have_text("geo.weather")
    sync_api.expect(call.locator(".call-state")).to_have_text("Writing")
    sync_api.expect(chat.spoken).to_have_text("The model calls a tool.")
    services.feed(ITEMS[half + 1 :])
    chat.status("completed")
    assert [block.get_attribute("class") for block in chat.blocks.all()] == [
        "thinking",
        "prose",
        "code call",
        "code call",
        "prose",
    ]
    assert call.locator("pre").text_content() == INDENTED
    assert chat.calls.nth(1).locator("pre").text_content() == '{\n  "a": "</pre><b>"\n}'
    assert chat.calls.locator("b").count() == 0
    sync_api.expect(chat.calls.locator(".call-state")).to_have_text(["Waiting for its output"] * 2)
    sync_api.expect(chat.page.get_by_role("group", name="Call of geo.weather")).to_be_visible()
    sync_api.expect(chat.spoken).to_contain_text("Waiting for the output of geo.weather, show.")
    assert chat.turn.get_by_role("button", name="Copy arguments").count() == 2


def test_a_reload_in_the_middle_of_arguments_goes_on_there_and_elsewhere_it_looks_the_same(
    fed: FedPage, browser: sync_api.Browser
) -> None:
    chat, services = fed
    half = number_of("function_call_arguments.delta", 4)
    services.feed(ITEMS[: half + 1])
    chat.seen(half)
    before = chat.calls.first.locator("pre").text_content()
    chat.page.reload()
    sync_api.expect(chat.calls.first.locator("pre")).to_have_text(str(before))
    chat.connected()
    services.feed(ITEMS[half + 1 :])
    chat.status("completed")
    assert services.watched == [-1, half]

    other = browser.new_context(**DESKTOP)
    again = fed_page.Services(other)
    elsewhere = Fed(other)
    elsewhere.open()
    elsewhere.ask("What is the weather?")
    again.feed(ITEMS)
    elsewhere.status("completed")
    chat.turn.locator(".hljs-attr").first.wait_for(state="attached")  # colours may come late
    elsewhere.looks(chat.turn.locator(".body").inner_html())
    other.close()


def test_what_was_cut_off_says_so_and_the_talk_goes_on(fed: FedPage) -> None:
    chat, services = fed
    cut = page_events.answered('<ccity|{}<e<cgeo__weather|{"city": "Zür', reason="length")
    services.feed(cut)
    chat.status("incomplete")
    states = chat.calls.locator(".call-state")
    sync_api.expect(states).to_have_text(["Waiting for its output", "Cut off"])
    assert chat.calls.nth(1).locator("pre").text_content() == '{"city": "Zür'
    sync_api.expect(chat.turn.locator(".note")).to_have_text(
        "Cut off: the length limit was reached."
    )
    first = chat.page.locator(".turn").first.locator(".call-state")
    with chat.page.expect_response("**/v1/responses"):
        chat.ask("And now?")
    sync_api.expect(first).to_have_text(["No output was given", "Cut off"])
    assert services.asked[1]["previous_response_id"] == "resp_1"


@pytest.mark.nightly
def test_long_names_and_arguments_fit_a_phone(browser: sync_api.Browser) -> None:
    context = browser.new_context(**MOBILE)
    services = fed_page.Services(context)
    chat = Fed(context)
    chat.open()
    chat.ask("What is the weather?")
    name, long = "weather_" * 16, "x" * 3000
    services.feed(page_events.answered(f'<r{long}<c{name}|{{"{long}":"{long}"}}<e', size=500))
    chat.status("completed")
    chat.thinking.locator("summary").click()
    assert overflow(chat.page) == 0
    assert chat.calls.get_by_role("button", name="Copy arguments").is_visible()
    for box in (chat.calls.locator("pre"), chat.thinking.locator(".thoughts")):
        size = box.bounding_box()
        assert size is not None
        assert size["height"] < 450
    context.close()


WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
        "required": ["city", "note"],
        "additionalProperties": False,
    },
}


def with_tools(chat: Chat, pace_ms: int) -> None:
    """What this tab asks has a tool and asks for reasoning."""

    def add(route: sync_api.Route) -> None:
        body: Any = route.request.post_data_json
        body["metadata"] |= {"script_pace_ms": str(pace_ms)}
        body |= {"tools": [WEATHER], "reasoning": {"effort": "low"}}
        route.continue_(post_data=json.dumps(body))

    chat.page.route("**/v1/responses", add)


@pytest.mark.nightly
def test_reloads_in_thoughts_and_arguments_of_a_real_stack_lose_and_repeat_nothing(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat = opener().open()
    with_tools(chat, 25)
    chat.ask("think 80\nsay Let me look.\ncall weather 160")
    grown = (
        "([selector, n]) => (document.querySelector('.turn:last-child ' + selector)"
        "?.textContent ?? '').length > n"
    )
    for selector, characters in ((".thoughts", 60), (".call pre", 100), (".call pre", 300)):
        chat.page.wait_for_function(grown, arg=[selector, characters])
        assert chat.turn.get_attribute("data-status") == "in_progress"
        chat.page.reload()
        chat.connected()
    other = opener().open("/" + chat.page.url.split("/", 3)[3])
    for tab in (chat, other):
        tab.status("completed")
    truth = chat.server_says()["output"]
    assert [item["type"] for item in truth] == ["reasoning", "message", "function_call"]
    kept = chat.kept()["answer"]
    starts = [item["at"] for item in kept["items"]]  # in UTF-16 code units
    texts = [
        item["arguments"] if "arguments" in item else item["content"][0]["text"] for item in truth
    ]
    utf_16 = kept["text"].encode("utf-16-le")
    found = [
        utf_16[2 * a : 2 * b].decode("utf-16-le")
        for a, b in itertools.pairwise([*starts, len(utf_16) // 2])
    ]
    assert found == texts
    drawn = chat.turn.locator(".call pre").text_content() or ""
    assert json.loads(drawn) == json.loads(texts[2])
    assert chat.turn.locator(".thoughts").text_content() == texts[0]
    chat.turn.locator(".hljs-attr").first.wait_for(state="attached")
    other.looks(chat.turn.locator(".body").inner_html())
    sync_api.expect(chat.turn.locator(".call-name")).to_have_text("weather")
    assert chat.complaints + other.complaints == []
    chat.page.unroute("**/v1/responses")
    chat.ask("And a plain one.")
    chat.status("completed")
    chat.check_plain()


# ---- answers of which another model, or another response, has a part

CUT = "Cut off: the length limit was reached."
BUSY = "Cut short, because the service was busy."


@dataclass(frozen=True)
class TwoPools:
    """A deployment whose pool "large" has the pool "small" to stand in for it. It has one slot, and
    gives shorter answers to requests that would wait."""

    stack: Stack
    large: gp.Process


@pytest.fixture
def two_pools(tmp_path: Path, kafka: str, redis_url: str, process_name: str) -> Iterator[TwoPools]:
    of_large, of_small = f"page-large-{process_name}", f"page-small-{process_name}"
    pools = {
        of_large: {
            "models": ["large"],
            "fallback": [of_small],
            "shorter_when_busy": {"backlog_s": 0.001, "max_output_tokens": 16},
        },
        of_small: {"models": ["small"]},
    }
    more = {"TAILRACE_POOLS": json.dumps(pools)}
    local.apply_topics(kafka, pools)
    keys = gp.Keys.make(tmp_path)
    port, credential = ports.free_port(), tmp_path / "credential"
    credential.write_text(keys.token("dev"))
    served = {
        "TAILRACE_PORT": str(port),
        "TAILRACE_ORIGINS": f"http://127.0.0.1:{port}",
        "TAILRACE_PAGE": str(ROOT / "frontend" / "dist"),
        "TAILRACE_DEV_CREDENTIAL": str(credential),
    }
    with contextlib.ExitStack() as running:

        def worker(pool: str, model: str) -> gp.Process:
            one = {
                "TAILRACE_MODEL_NAME": model,
                "TAILRACE_SCRIPT_REVISION": model,
                "TAILRACE_MAX_NUM_SEQS": "1",
            }
            return running.enter_context(
                gp.worker(tmp_path, kafka, redis_url, pool, f"{model}-1", **one, **more)
            )

        large, _ = worker(of_large, "large"), worker(of_small, "small")
        gateway = running.enter_context(
            gp.gateway(tmp_path, kafka, redis_url, of_large, keys, **served, **more)
        )
        stack = Stack(gateway.url, gateway.url, credential.read_text(), tmp_path, "scripted")
        conftest.wait_for(
            lambda: answered_by(stack) == "large", "the first pool answers", deadline_s=90.0
        )
        yield TwoPools(stack, large)


def answered_by(stack: Stack) -> str:
    body = {"model": "large", "input": "hi", "metadata": gp.cues(2, 1)}
    answer = httpx.post(f"{stack.api}/responses", json=body, headers=stack.headers, timeout=60.0)
    return str(answer.json().get("model"))


@pytest.mark.nightly
def test_an_answer_whose_model_is_lost_goes_on_as_one_text_that_names_the_other(
    tabs: Callable[..., Opener], two_pools: TwoPools
) -> None:
    opener = tabs(two_pools.stack)
    chat = copying(opener()).open()
    slowly(chat, 60, 300)  # it must not end before the second tab is open
    chat.ask("hi")
    chat.streaming(20)
    other = opener().open("/" + chat.page.url.split("/", 3)[3])
    two_pools.large.kill()
    chat.page.reload()
    chat.connected()
    for tab in (chat, other):
        sync_api.expect(tab.notices).to_have_text(
            "large stopped answering; small continues from here", timeout=120_000
        )
        tab.status("completed")
    truth = chat.server_says()
    said = [item["content"][0]["text"] for item in truth["output"]]
    assert len(said) == 2, "another model had a part of it"
    whole = scripted.expected_text([{"role": "user", "content": "hi"}], 60)
    assert "".join(said) == whole
    for tab in (chat, other):
        tab.check_exact()
        assert squeezed(tab.read) == squeezed(whole)
        assert squeezed(tab.shown.partition("large stopped")[0]) == squeezed(said[0])
        assert tab.turn.locator(".body > *").count() == 1
    assert chat.copied() == whole
    drawn = chat.turn.locator(".body").inner_html()
    chat.page.reload()
    for tab in (chat, other):
        tab.looks(drawn)
    assert chat.complained + other.complained == []


@pytest.mark.nightly
def test_a_busy_pools_shorter_answer_says_so_and_is_continued_to_its_end(
    tabs: Callable[..., Opener], two_pools: TwoPools
) -> None:
    chat = tabs(two_pools.stack)().open()
    with httpx.Client(headers=two_pools.stack.headers, timeout=60.0) as client:
        url, waiting_ = f"{two_pools.stack.api}/responses", list[str]()

        def ask(tokens: int) -> dict[str, Any]:
            more = {"background": True, "metadata": gp.cues(tokens, 20)}
            found: dict[str, Any] = client.post(
                url, json={"model": "large", "input": "hi", **more}
            ).json()
            waiting_.append(found["id"])
            return found

        ask(3_000)
        conftest.wait_for(lambda: "shortened" in ask(3_000), "it is busy", deadline_s=60.0)
        chat.ask(QUESTION)
        conftest.wait_for(lambda: chat.kept()["answer"], "the question is taken")
        for rid in waiting_:
            client.post(f"{url}/{rid}/cancel")
    chat.status("incomplete")
    note = chat.turn.locator(".note")
    sync_api.expect(note).to_have_text(BUSY)
    # What follows may be cut short too, as long as heartbeats tell of the others.
    while chat.kept()["answer"]["status"] == "incomplete":
        sync_api.expect(note).to_have_text(BUSY)
        before = chat.kept()["attempt"]
        chat.turn.get_by_role("button", name="Continue").click()
        assert chat.kept()["attempt"] == before + 1
        conftest.wait_for(lambda: over(chat.kept()["answer"]), "it ends", deadline_s=90.0)
    chat.status("completed")
    whole = scripted.readable_text([{"role": "user", "content": QUESTION}])
    assert squeezed(chat.shown) == squeezed(whole)
    assert (chat.page.locator(".turn").count(), chat.notices.count()) == (1, 0)
    chat.page.reload()
    chat.connected()
    assert squeezed(chat.shown) == squeezed(whole)
    assert chat.complained == []


def over(answer: dict[str, Any] | None) -> bool:
    return answer is not None and answer["status"] in ("incomplete", "completed")


@pytest.mark.nightly
def test_more_of_an_answer_that_was_cut_off_is_a_part_of_it(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    opener = tabs(scripted_stack)
    chat = copying(opener()).open()
    briefly(chat, 20)
    chat.ask(QUESTION)
    chat.status("incomplete")
    sync_api.expect(chat.turn.locator(".note")).to_have_text(CUT)
    first = chat.check_plain()
    rid = chat.kept()["answer"]["responseId"]
    other = opener().open("/" + chat.page.url.split("/", 3)[3])
    chat.page.unroute("**/v1/responses")
    asked: list[Any] = []
    chat.page.on(
        "request", lambda r: asked.append(r.post_data_json) if r.method == "POST" else None
    )
    chat.turn.get_by_role("button", name="Continue").click()
    for tab in (chat, other):
        tab.status("completed")
    (more,) = [body for body in asked if body and "input" in body]
    assert (more["input"], more["conversation"]["parent"]) == ([], rid)
    whole = scripted.readable_text([{"role": "user", "content": QUESTION}])
    rest = chat.server_says()["output"][0]["content"][0]["text"]
    assert (first + rest, bool(first), bool(rest)) == (whole, True, True)
    for tab in (chat, other):
        assert squeezed(tab.shown) == squeezed(whole)
        assert tab.page.locator(".turn").count() == 1
        assert tab.turn.locator(".body > *").count() == 1
        sync_api.expect(tab.turn.locator(".note")).to_be_hidden()
    assert chat.copied() == whole
    drawn = chat.turn.locator(".body").inner_html()
    chat.page.reload()
    chat.connected()
    chat.looks(drawn)
    assert chat.turn.get_by_role("button", name="Continue").count() == 0
    chat.ask("And then?")
    chat.status("completed")
    then = [body for body in asked if body and "input" in body][-1]
    assert then["conversation"]["parent"] == more_id(chat)
    assert chat.complaints + other.complaints == []


def more_id(chat: Chat) -> str:
    """The last response of the turn before the last one, as this browser keeps it."""
    found: str = chat.page.evaluate(
        """() => {
            const name = new URLSearchParams(location.hash.slice(1)).get('c');
            const kept = Object.keys(localStorage).filter(k => k.includes('.conversation.'))
                .map(k => JSON.parse(localStorage.getItem(k)));
            const found = kept.find(({id, remote}) => name === id || name === remote);
            return found.turns.at(-2).answer.responseId;
        }"""
    )
    return found


def test_a_shorter_answer_says_why_and_goes_on_where_it_was_cut(fed: FedPage) -> None:
    chat, services = fed
    services.feed(page_events.made()["shortened"])
    chat.status("incomplete")
    sync_api.expect(chat.turn.locator(".note")).to_have_text(BUSY)
    sync_api.expect(chat.spoken).to_have_text(f"{BUSY} Once upon.")
    services.next_response()
    button = chat.turn.get_by_role("button", name="Continue")
    button.focus()
    chat.page.keyboard.press("Enter")
    chat.status("queued")
    assert chat.page.evaluate("document.activeElement.className") == "answer"
    sync_api.expect(button).to_be_hidden()
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon")
    asked = services.asked[1]
    assert (asked["input"], asked["previous_response_id"]) == ([], "resp_1")
    more = page_events.made()["more"]
    services.feed(more[:6])
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon a tim")
    sync_api.expect(chat.spoken).to_have_text("The answer continues.")
    chat.page.reload()
    chat.connected()
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon a tim")
    services.feed(more[6:])
    chat.status("completed")
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon a time.")
    sync_api.expect(chat.spoken).to_have_text("The answer is complete. a time.")
    assert chat.page.locator(".turn").count() == 1


@pytest.mark.nightly
def test_more_of_an_answer_can_be_asked_for_again_when_it_was_refused(fed: FedPage) -> None:
    chat, services = fed
    services.feed(page_events.made()["shortened"])
    chat.status("incomplete")
    services.next_response()
    services.refusals.append((429, "rate_limit_exceeded", "41"))
    chat.turn.get_by_role("button", name="Continue").click()
    chat.status("unsent")
    sync_api.expect(chat.turn.locator(".note")).to_contain_text("Try again in 41 s.")
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon")
    sync_api.expect(chat.turn.get_by_role("button", name="Edit")).to_be_hidden()
    chat.turn.get_by_role("button", name="Try again").click()
    chat.status("queued")
    services.feed(page_events.made()["more"])
    chat.status("completed")
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("Once upon a time.")


ACROSS = page_events.spoken(
    ("", "Look:\n\n```python\nfor each in "),
    ("small", "range(3):\n    print(each)\n```\n\n1. one\n2. **t"),
    ("tiny", "wo**\n3. three"),
)


@pytest.mark.nightly
def test_a_model_that_goes_on_in_code_or_a_list_leaves_them_whole(fed: FedPage) -> None:
    chat, services = fed
    # Pages without TLS have no clipboard.
    chat.page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', "
        "{ value: { writeText: async (text) => { window.copied = text; } } })"
    )
    small = next(n for n, e in enumerate(ACROSS) if e.get("response", {}).get("model") == "small")
    services.feed(ACROSS[:small])
    chat.seen(small - 1)
    sync_api.expect(chat.notices).to_have_count(0)
    services.feed(ACROSS[small : small + 1])
    sync_api.expect(chat.notices).to_have_text(
        "test-model stopped answering; small continues from here"
    )
    sync_api.expect(chat.spoken).to_have_text(
        "test-model stopped answering; small continues from here."
    )
    services.feed(ACROSS[small + 1 :])
    chat.status("completed")
    sync_api.expect(chat.notices).to_have_count(2)
    sync_api.expect(chat.turn.locator("pre .seam")).to_have_count(1)
    sync_api.expect(chat.turn.locator("ol > li")).to_have_text(
        ["one", re.compile("^t.*small stopped answering; tiny continues from here.*wo$"), "three"]
    )
    sync_api.expect(chat.turn.locator("ol strong")).to_have_count(1)
    chat.turn.locator(".hljs-keyword").first.wait_for(state="attached")  # colours may come late
    drawn = chat.turn.locator(".body").inner_html()
    chat.turn.get_by_role("button", name="Copy code").click()
    sync_api.expect(chat.turn.locator(".copy-code")).to_have_text("Copied")
    assert chat.page.evaluate("window.copied") == "for each in range(3):\n    print(each)"
    chat.page.reload()
    sync_api.expect(chat.notices).to_have_count(2)
    chat.looks(drawn)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (page_events.spoken(("small", "One.")), "Answered by small: test-model was not available."),
        (
            page_events.spoken(("", "One."), answer_of="resp_0"),
            "The same question was answered a short time ago. This is the same answer.",
        ),
    ],
    ids=["another_model", "given_again"],
)
def test_an_answer_says_who_gave_it(fed: FedPage, events: list[Any], words: str) -> None:
    chat, services = fed
    begins = next(n for n, e in enumerate(events) if e["type"] == "response.output_text.delta")
    services.feed(events[: begins + 1])
    sync_api.expect(chat.turn.locator(".served")).to_have_text(words)
    sync_api.expect(chat.spoken).to_have_text(f"The answer begins. {words}")
    services.feed(events[begins + 1 :])
    chat.status("completed")
    chat.page.reload()
    sync_api.expect(chat.turn.locator(".served")).to_have_text(words)
    sync_api.expect(chat.turn.locator(".prose")).to_have_text("One.")


@pytest.mark.nightly
def test_notices_fit_a_phone(browser: sync_api.Browser) -> None:
    context = browser.new_context(**MOBILE)
    services = fed_page.Services(context)
    chat = Fed(context)
    chat.open()
    chat.ask("What is the weather?")
    name = "a-model-with-a-very-long-name-" * 6
    asked = page_events.SHORTENED
    services.feed(
        page_events.spoken(
            (name, "| a | b |\n|---|---|\n| c "), ("tiny", "| d |"), reason="length", asked=asked
        )
    )
    chat.status("incomplete")
    sync_api.expect(chat.notices).to_have_count(1)
    assert overflow(chat.page) == 0
    for part in (chat.turn.locator(".served"), chat.turn.get_by_role("button", name="Continue")):
        box = part.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    context.close()


# ---- what axe-core finds (the services are a script: no screen needs a deployment)

RICH = """# A title

Text with *emphasis*, `code`, a [link](https://example.com/) and ~~what was deleted~~.

## A smaller one

- [x] done
- [ ] not yet

1. first
2. second

> quoted

| a | b |
|---|---|
| 1 | {wide} |

| c | d |
|---|---|
| 3 | 4 |

```python
for each in range(3):  # a comment
    print(f"{{each}}", "{wide}")
```

![a picture](https://example.com/a.png)

---

The end.
""".format(wide="wide " * 60)


def test_axe_finds_nothing_on_any_screen(browser: sync_api.Browser) -> None:
    context = browser.new_context(**DESKTOP)
    context.set_default_timeout(30_000)
    services = fed_page.Services(context)
    chat = Fed(context)
    page, screens = chat.page, accessibility.Screens(chat.page)

    page.route("**/v1/session", lambda route: route.fulfill(json={"subject": None}))
    page.goto(f"{fed_page.ORIGIN}/#credential=a.e30.c")
    page.get_by_role("button", name="Do not sign in").wait_for()
    screens.look("a link that signs in")
    page.get_by_role("button", name="Do not sign in").click()
    page.get_by_label("Credential").wait_for()
    screens.look("signed out")
    page.unroute("**/v1/session")
    page.reload()
    chat.connected()
    page.locator(".welcome").wait_for()
    screens.look("welcome")

    chat.ask("What is the weather?")
    services.feed(ITEMS[: number_of("reasoning_text.delta") + 1])
    chat.thinking.wait_for()
    screens.look("an answer that begins")
    services.feed(ITEMS[number_of("reasoning_text.delta") + 1 :])
    chat.status("completed")
    chat.thinking.locator("summary").click()
    services.next_response()
    chat.ask("Think again.")
    services.feed(ITEMS)
    chat.status("completed")
    chat.thinking.locator("summary").click()
    services.next_response()
    chat.ask("And now at length.")
    services.feed(
        page_events.spoken(
            ("small", RICH[:90]), ("tiny", RICH[90:]), reason="length", asked=page_events.SHORTENED
        )
    )
    chat.status("incomplete")
    sync_api.expect(chat.turn.locator("table")).to_have_count(2)
    services.refusals = [(400, "invalid_value", "0")]
    chat.ask("Refuse this.")
    chat.status("unsent")
    screens.look("answers, and a question that was refused")
    page.set_viewport_size(MOBILE["viewport"])
    screens.look("the same on a phone", ["light"])
    page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_role("navigation", name="Chats").wait_for()
    screens.look("the list of conversations on a phone", ["light"])
    context.close()
    screens.check()
