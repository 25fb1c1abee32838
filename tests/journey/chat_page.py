"""The chat page in a real browser: one tab, and what a person does in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from playwright import sync_api

from tests.support import waiting

if TYPE_CHECKING:
    from tests.journey.conftest import Stack

# Chromium tries to reach its maker's hosts at every start; in a closed network that only costs
# time.
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 820}, "color_scheme": "light"}
MOBILE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True,
    "has_touch": True,
    "device_scale_factor": 2,
}
# The phone in `make nightly`.
DEVICES = [
    pytest.param(DESKTOP, id="desktop"),
    pytest.param(MOBILE, id="phone", marks=pytest.mark.nightly),
]
# Keeps every text that the last answer ever showed, so that a moment between two looks of the test
# counts too.
RECORD = """
window.shown = [];
new MutationObserver(() => {
  const all = document.querySelectorAll('.turn .prose');
  const text = all.length ? all[all.length - 1].textContent : '';
  if (text !== window.shown.at(-1)) window.shown.push(text);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""


class Chat:
    """One tab, and what a person does in it."""

    def __init__(self, page: sync_api.Page, stack: Stack) -> None:
        self.page = page
        self.stack = stack
        self.complaints: list[str] = []
        page.on(
            "console",
            lambda m: self.complaints.append(m.text) if m.type in ("warning", "error") else None,
        )
        page.on("pageerror", lambda e: self.complaints.append(str(e)))

    def open(self, path: str = "/") -> Chat:
        self.page.goto(self.stack.url + path)
        self.connected()
        return self

    @property
    def complained(self) -> list[str]:
        """What the page itself found wrong, without what the browser says of addresses that do not
        answer."""
        return [
            c for c in self.complaints if "net::ERR" not in c and "Failed to load resource" not in c
        ]

    def connected(self, timeout: float = 30_000) -> None:
        self.page.wait_for_selector('.status[data-state="open"]', timeout=timeout)

    def submit_credential(self, credential: str) -> None:
        """In the dialog that asks for one."""
        self.page.get_by_label("Credential").fill(credential)
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_role("button", name="Sign in", exact=True).click()

    def ask(self, question: str) -> None:
        """Asks and waits until the question stands on the page: before that the last turn, and its
        status, is the question before."""
        asked = self.page.locator(".turn").count()
        self.page.fill("#question", question)
        self.page.press("#question", "Enter")
        sync_api.expect(self.page.locator(".turn")).not_to_have_count(asked)

    @property
    def turn(self) -> sync_api.Locator:
        """The last question with its answer."""
        return self.page.locator(".turn").last

    @property
    def wordings(self) -> sync_api.Locator:
        """The counter of what was asked in the place of the last question."""
        return self.turn.get_by_role("group", name="Versions of the question")

    @property
    def answers(self) -> sync_api.Locator:
        """The counter of answers to the last question."""
        return self.turn.get_by_role("group", name="Answers to this question")

    @property
    def shown(self) -> str:
        """The answer's text as drawn."""
        return self.turn.locator(".prose").text_content() or ""

    def status(self, *wanted: str, timeout: float = 240_000) -> None:
        """Until the last turn has one of these; `timeout`, milliseconds, is for what hangs."""
        selector = ", ".join(f'.turn:last-child[data-status="{s}"]' for s in wanted)
        self.page.wait_for_selector(selector, timeout=timeout)

    def looks(self, drawn: str) -> None:
        """Until the body of the turn is this HTML: what draws code and formulas may come late."""
        waiting.eventually_blocking(
            lambda: self.turn.locator(".body").inner_html() == drawn, "it is drawn like that"
        )

    def streaming(self, characters: int = 1) -> None:
        """Until so much of the answer is drawn; it must not be over by then."""
        self.page.wait_for_function(
            (
                "n => (document.querySelector('.turn:last-child .prose')?.textContent ?? "
                "'').length >= n"
            ),
            arg=characters,
        )
        assert self.turn.get_attribute("data-status") == "in_progress"

    def kept(self) -> dict[str, Any]:
        """The last turn as this browser keeps it."""
        found: dict[str, Any] = self.page.evaluate(
            """() => {
                const name = new URLSearchParams(location.hash.slice(1)).get('c');
                const kept = Object.keys(localStorage).filter(k => k.includes('.conversation.'))
                    .map(k => JSON.parse(localStorage.getItem(k)));
                return kept.find(({id, remote}) => name === id || name === remote).turns.at(-1);
            }"""
        )
        return found

    def server_says(self) -> dict[str, Any]:
        """The Response object behind the last answer, asked for with this browser's session. Where
        the page has seen the end, so has the Response: the gateway may learn of it a moment later
        than the push service that told the page. And another tab that is behind may for a moment
        keep less of an answer than this one."""
        for _ in range(100):
            answer = self.kept()["answer"]
            got = self.page.request.get(f"{self.stack.api}/responses/{answer['responseId']}")
            assert got.status == 200, got.text()
            found: dict[str, Any] = got.json()
            if self.turn.get_attribute("data-status") in RUNNING:
                return found
            if answer["status"] not in RUNNING and found["status"] not in RUNNING:
                return found
            self.page.wait_for_timeout(50)
        raise AssertionError(f"the gateway does not see the end: {found}")

    def turns_at_the_server(self) -> list[dict[str, Any]]:
        """The turns of the last answer's chat, in the order in which they were asked."""
        name = self.server_says()["conversation"]["id"]
        got = self.page.request.get(f"{self.stack.api}/conversations/{name}/turns")
        assert got.status == 200, got.text()
        found: list[dict[str, Any]] = got.json()["data"]
        return found

    def check_exact(self) -> str:
        """What is kept is the server's text to the letter; what is drawn says the same. Returns the
        text."""
        truth = self.server_says()
        text = "".join(part["text"] for item in truth["output"] for part in item["content"])
        kept = self.kept()["answer"]
        assert kept["status"] == truth["status"]
        assert kept["text"] == text
        return text

    @property
    def notices(self) -> sync_api.Locator:
        """Where another model goes on with the last answer."""
        return self.turn.locator(".prose .seam")

    @property
    def read(self) -> str:
        """The answer's text as drawn, without the notices in it."""
        found: str = self.turn.locator(".prose").evaluate(
            """prose => {
                const copy = prose.cloneNode(true);
                for (const notice of copy.querySelectorAll('.seam')) notice.remove();
                return copy.textContent;
            }"""
        )
        return found

    def copied(self) -> str:
        """What the button for the whole answer copies."""
        self.turn.get_by_role("button", name="Copy answer").click()
        sync_api.expect(self.turn.get_by_role("button", name="Copied")).to_be_visible()
        found: str = self.page.evaluate("navigator.clipboard.readText()")
        return found

    def check_plain(self) -> str:
        """The same, and letter by letter on the page, for text without any Markdown in it."""
        text = self.check_exact()
        assert squeezed(self.shown) == squeezed(text)
        return text


RUNNING = ("queued", "in_progress")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def slowly(chat: Chat, tokens: int, pace_ms: int = 15) -> None:
    """The scripted engine answers what this tab asks with so many tokens at such a pace."""

    def cue(route: sync_api.Route) -> None:
        body: Any = route.request.post_data_json
        body["metadata"] |= {"script_tokens": str(tokens), "script_pace_ms": str(pace_ms)}
        route.continue_(post_data=json.dumps(body))

    chat.page.route("**/v1/responses", cue)


def briefly(chat: Chat, tokens: int = 150) -> None:
    """Answers to what this tab asks end after so many tokens: the real model shares two cores with
    two tabs of a browser."""

    def limit(route: sync_api.Route) -> None:
        body: Any = route.request.post_data_json
        route.continue_(post_data=json.dumps(body | {"max_output_tokens": tokens}))

    chat.page.route("**/v1/responses", limit)


def copying(chat: Chat) -> Chat:
    chat.page.context.grant_permissions(
        ["clipboard-read", "clipboard-write"], origin=chat.stack.url
    )
    return chat


def overflow(page: sync_api.Page) -> int:
    """How far the page can be scrolled sideways."""
    found: int = page.evaluate(
        "document.scrollingElement.scrollWidth - document.scrollingElement.clientWidth"
    )
    return found


Opener = Callable[..., Chat]
