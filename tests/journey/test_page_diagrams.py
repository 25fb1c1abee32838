"""Diagrams on the chat page: blocks of code in the language of Mermaid are drawn, in frames in
which the text of a model can do nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright import sync_api

from gateway.routes import page
from tests.journey.chat_page import DESKTOP, MOBILE, Opener, overflow
from tests.journey.conftest import Stack
from tests.journey.fed_chat import Fed
from tests.journey.test_page_share import message
from tests.journey.test_page_shell import CONTROLLED
from tests.support import accessibility, fed_page, page_events

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

FLOWCHART = """flowchart LR
  A[Client] --> B{Is it new?}
  B -- yes --> C[Gateway]
  B -- no --> D[Read it from the log]
"""
SEQUENCE = """sequenceDiagram
  participant C as Client
  participant G as Gateway
  C->>G: POST /v1/responses
  Note right of G: It is appended to the log
  G-->>C: queued
"""
NO_DIAGRAM = "flowchart LR\n  A[Client --> B]]] -->\n"
WRONG = "This is not a valid diagram, so its source is shown."
TOO_LONG = "This diagram is too long to be drawn, so its source is shown."
LATE = "This diagram can't be drawn now, so its source is shown."
# What would tell another host that it was read, were it ever asked for.
ELSEWHERE = "http://elsewhere.test"
# What a directive would change, were it let.
LOOSE: dict[str, Any] = {
    "securityLevel": "loose",
    "htmlLabels": True,
    "flowchart": {"htmlLabels": True},
    "dompurifyConfig": {"ADD_TAGS": ["script", "iframe"], "ADD_ATTR": ["onload", "onerror"]},
    "themeCSS": f"* {{ background: url({ELSEWHERE}/background) }}",
}
# What is drawn of these has nothing in it that runs, loads or leads anywhere.
HOSTILE = (
    f"""flowchart TD
  A["<script>window.hit=1;parent.hit=1;top.hit=1</script>hostile"]
  B["<img src=x onerror=parent.hit=1> <img src={ELSEWHERE}/image>"]
  C["<iframe src='{ELSEWHERE}/frame'></iframe><svg onload=alert(1)></svg>"]
  A --> B --> C
""",
    f"""%%{{init: {json.dumps(LOOSE)}}}%%
flowchart TD
  A["<img src={ELSEWHERE}/image onerror=parent.hit=1>hostile"]
  B["<iframe src='{ELSEWHERE}/frame'></iframe>"]
  A --> B
""",
    f"""flowchart TD
  A[called] --> B[hostile] --> C[link]
  click A call alert("hit")
  click B "javascript:parent.hit=1"
  click C href "{ELSEWHERE}/link" _self
""",
    f"""---
config:
  securityLevel: loose
  secure: []
---
classDiagram
  class hostile
  click hostile href "{ELSEWHERE}/class" "tip" _self
  callback hostile "alert" "tip"
""",
    f"""sequenceDiagram
  participant A as hostile<b onmouseover=alert(1)>
  link A: Go @ javascript:parent.hit=1
  links A: {{"Home": "{ELSEWHERE}/home"}}
  A->>A: <script>parent.hit=1</script>
""",
)
# These are not drawn at all: an image from elsewhere, and more than is ever drawn.
REFUSED = (
    f"""flowchart TD
  A@{{ img: "{ELSEWHERE}/shape", label: "shape", h: 60 }}
""",
    "flowchart LR\n" + "A --> B\n" * 4000,
)


def fenced(*sources: str) -> str:
    return "\n\n".join(f"```mermaid\n{each.rstrip()}\n```" for each in sources)


class Drawn(Fed):
    """A tab with one question, whose answer the test feeds.

    Attributes:
        requests: the addresses that were asked for.
        elsewhere: those of them on ELSEWHERE that the browser would have sent. What a policy
            refuses does not get there.
    """

    def __init__(self, browser_: sync_api.Browser, **options: Any) -> None:
        self.context = browser_.new_context(**options)
        self.context.set_default_timeout(60_000)
        self.services = fed_page.Services(self.context)
        self.elsewhere: list[str] = []
        self.requests: list[str] = []
        self.context.route(f"{ELSEWHERE}/**", self._left)
        self.context.on("request", lambda request: self.requests.append(request.url))
        super().__init__(self.context)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self.open()
        self.ask("Draw it.")

    def _left(self, route: sync_api.Route) -> None:
        self.elsewhere.append(route.request.url)
        route.fulfill(body="elsewhere")

    def feed(self, text: str) -> None:
        self.services.feed(page_events.spoken(("", text)))

    def answer(self, text: str) -> None:
        self.feed(text)
        self.status("completed")

    @property
    def diagrams(self) -> sync_api.Locator:
        return self.turn.locator(".code[data-diagram]")

    def shown_in(self, block: sync_api.Locator) -> sync_api.FrameLocator:
        """Where a diagram is drawn, once it is."""
        sync_api.expect(block.locator(".diagram[data-shown]")).to_have_count(1)
        return block.frame_locator("iframe.diagram-frame")


@pytest.fixture
def drawn(browser: sync_api.Browser) -> Iterator[Callable[..., Drawn]]:
    with contextlib.ExitStack() as opened:

        def show(**options: Any) -> Drawn:
            one = Drawn(browser, **(options or DESKTOP))
            opened.callback(one.context.close)
            return one

        yield show


@pytest.mark.nightly
def test_diagrams_are_drawn_with_their_texts_and_what_is_none_shows_its_source(
    drawn: Callable[..., Drawn], tmp_path: Path
) -> None:
    chat = drawn()
    assert not any("mermaid" in url or "diagram" in url for url in chat.requests)
    chat.answer(f"Two:\n\n{fenced(FLOWCHART, SEQUENCE)}\n\nNone:\n\n{fenced(NO_DIAGRAM)}")
    flowchart, sequence, none = (chat.diagrams.nth(place) for place in range(3))
    for block, texts in ((flowchart, ("Client", "Is it new?")), (sequence, ("queued", "Gateway"))):
        frame = chat.shown_in(block)
        sync_api.expect(frame.locator("svg").first).to_be_visible()
        for text in texts:
            sync_api.expect(frame.get_by_text(text).first).to_be_visible()
        sync_api.expect(block.locator("pre")).to_be_hidden()
        box = block.locator("iframe").bounding_box()
        assert box is not None
        assert 40 < box["height"] <= 640
        assert block.locator("iframe").get_attribute("title") == "Diagram"
        assert block.locator("iframe").get_attribute("sandbox") == "allow-scripts"
    sync_api.expect(none.locator(".diagram-note")).to_have_text(WRONG)
    sync_api.expect(none.locator("pre")).to_be_visible()
    assert none.locator("iframe").count() == 0
    chat.page.screenshot(path=tmp_path / "diagrams.png")
    fetched = [url for url in chat.requests if "mermaid" in url]
    assert len(fetched) == 1, "what draws is brought once for all diagrams"

    switch = flowchart.get_by_role("button", name="Show source")
    switch.click()
    sync_api.expect(flowchart.locator("pre")).to_have_text(FLOWCHART.rstrip())
    sync_api.expect(flowchart.locator("pre")).to_be_visible()
    sync_api.expect(flowchart.locator("iframe")).to_be_hidden()
    chat.page.screenshot(path=tmp_path / "source.png")
    flowchart.get_by_role("button", name="Show diagram").click()
    sync_api.expect(chat.shown_in(flowchart).get_by_text("Client").first).to_be_visible()
    assert chat.complained == []
    assert chat.elsewhere == []


@pytest.mark.nightly
def test_a_diagram_is_drawn_when_its_fence_is_closed_and_then_left_alone(
    drawn: Callable[..., Drawn],
) -> None:
    chat = drawn()
    after = "And so on, with `code` and more words. " * 12
    text = f"So:\n\n{fenced(FLOWCHART)}\n\n{after}\n\n```python\nx = 1\n```\n\nThe end."
    events = page_events.spoken(("", text))
    closed = next(at for at in range(len(events)) if "log]\n```" in said(events[:at]))
    chat.services.feed(events[: closed - 1])
    sync_api.expect(chat.turn.locator("pre")).to_contain_text("Read it from")
    chat.page.wait_for_timeout(1000)
    assert chat.diagrams.count() == 0
    assert chat.page.locator("iframe").count() == 0
    assert not any("mermaid" in url for url in chat.requests)
    chat.services.feed(events[closed - 1 : closed + 4])
    frame = chat.shown_in(chat.diagrams.first)
    frame.locator("svg").first.evaluate("svg => { window.here = svg; }")
    element = chat.diagrams.locator("iframe").element_handle()
    for at in range(closed + 4, len(events), 20):
        chat.services.feed(events[at : at + 20])
        chat.page.wait_for_timeout(20)
    chat.status("completed")
    sync_api.expect(chat.turn.locator(".hljs-number")).to_have_count(1)  # colours have come
    assert chat.diagrams.locator("iframe").evaluate("(one, other) => one === other", element)
    assert frame.locator("svg").first.evaluate("svg => window.here === svg"), "not drawn anew"
    assert chat.complained == []


def said(events: list[dict[str, Any]]) -> str:
    return "".join(each.get("delta", "") for each in events)


def test_a_hostile_diagram_runs_nothing_and_asks_no_other_host(
    drawn: Callable[..., Drawn], tmp_path: Path
) -> None:
    chat = drawn()
    chat.answer(fenced(*HOSTILE, *REFUSED))
    for block in chat.diagrams.all()[: len(HOSTILE)]:
        block.scroll_into_view_if_needed()
        sync_api.expect(chat.shown_in(block).get_by_text("hostile").first).to_be_visible()
    for block, note in zip(chat.diagrams.all()[len(HOSTILE) :], (WRONG, TOO_LONG), strict=True):
        block.scroll_into_view_if_needed()
        sync_api.expect(block.locator(".diagram-note")).to_have_text(note)
    chat.diagrams.first.scroll_into_view_if_needed()
    chat.page.screenshot(path=tmp_path / "hostile.png")
    for frame in chat.page.frames[1:]:
        assert frame.evaluate("location.pathname") == "/diagram.html"
        assert frame.evaluate("self.origin") == "null"
        assert frame.evaluate("window.hit") is None
        risky = "script:not([src]), iframe, [onerror], [onload], [onmouseover], a[href]"
        assert frame.locator(risky).count() == 0
        for link in frame.locator("a, .clickable, [class*=node]").all()[:6]:
            link.dispatch_event("click")
    chat.page.wait_for_timeout(500)
    assert chat.page.evaluate("window.hit") is None
    assert len(chat.context.pages) == 1
    assert [frame.url for frame in chat.page.frames[1:] if "/diagram.html" not in frame.url] == []
    assert chat.elsewhere == []
    assert {url for url in chat.requests if not url.startswith(fed_page.ORIGIN)} <= {
        f"{ELSEWHERE}/shape"  # refused by the policy of the frame
    }
    # What the policy of the frame refuses is said by the browser, and nothing else.
    assert [c for c in chat.complained if "Content Security Policy" not in c] == []


@pytest.mark.nightly
def test_a_frame_lets_in_and_out_nothing_of_its_own_accord(drawn: Callable[..., Drawn]) -> None:
    """Even if what draws were talked into running a script."""
    chat = drawn()
    chat.answer(fenced(FLOWCHART))
    chat.shown_in(chat.diagrams.first)
    frame = next(each for each in chat.page.frames if each != chat.page.main_frame)
    refused = frame.evaluate(
        """async (elsewhere) => {
            const refused = [];
            const no = (name, tried) => tried.catch(() => refused.push(name));
            await no('fetch', fetch('/config.json'));
            await no('elsewhere', fetch(elsewhere));
            await no('image', new Promise((done, failed) => Object.assign(new Image(), {
                src: `${elsewhere}/image`, onload: done, onerror: failed })));
            await no('storage', (async () => localStorage.length)());
            await no('cookie', (async () => document.cookie)());
            await no('parent', (async () => parent.document)());
            try { eval('1'); } catch { refused.push('eval'); }
            return refused;
        }""",
        ELSEWHERE,
    )
    assert refused == ["fetch", "elsewhere", "image", "storage", "cookie", "parent", "eval"]
    # A frame that goes elsewhere is left empty by the browser.
    frame.evaluate("elsewhere => { setTimeout(() => location.assign(elsewhere)); }", ELSEWHERE)
    chat.page.wait_for_timeout(1000)
    assert ELSEWHERE not in frame.url
    assert chat.elsewhere == []
    chat.context.new_page().goto(f"{ELSEWHERE}/")
    assert chat.elsewhere == [f"{ELSEWHERE}/"], "it would have been seen"


@pytest.mark.nightly
def test_diagrams_follow_the_theme_fit_a_phone_and_axe_finds_nothing(
    drawn: Callable[..., Drawn], tmp_path: Path
) -> None:
    chat = drawn()
    chat.answer(fenced(FLOWCHART, SEQUENCE, NO_DIAGRAM))
    first = chat.diagrams.first
    text = chat.shown_in(first).locator("svg").first
    chat.shown_in(chat.diagrams.nth(1))
    screens = accessibility.Screens(chat.page)
    screens.look("diagrams", ["light"])
    light = text.evaluate(LABEL_COLOUR)
    chat.page.screenshot(path=tmp_path / "light.png")
    chat.page.emulate_media(color_scheme="dark")
    for block in (first, chat.diagrams.nth(1)):
        svg = chat.shown_in(block).locator("svg").first
        sync_api.expect(svg).to_have_css("color-scheme", "dark")
    assert text.evaluate(LABEL_COLOUR) != light
    screens.look("diagrams", ["dark"])
    chat.page.screenshot(path=tmp_path / "dark.png")
    chat.page.emulate_media(color_scheme="light")
    sync_api.expect(text).to_have_css("color-scheme", "light")
    # The reader's own choice holds against the system's.
    for _ in range(2):
        chat.page.get_by_title("Change the theme").click()
    sync_api.expect(text).to_have_css("color-scheme", "dark")
    chat.page.set_viewport_size(MOBILE["viewport"])
    chat.page.wait_for_timeout(500)
    assert overflow(chat.page) == 0
    first.scroll_into_view_if_needed()
    chat.page.screenshot(path=tmp_path / "phone.png")
    screens.look("diagrams on a phone", ["dark"])
    first.get_by_role("button", name="Show source").click()
    screens.look("the source on a phone", ["dark"])
    chat.page.screenshot(path=tmp_path / "phone-source.png")
    screens.check()
    assert chat.complained == []


LABEL_COLOUR = """svg => {
  const label = svg.querySelector('.nodeLabel, .label text, text');
  return getComputedStyle(label).fill;
}"""


@pytest.mark.nightly
def test_what_can_be_pressed_is_large_enough_for_a_finger(drawn: Callable[..., Drawn]) -> None:
    chat = drawn(**MOBILE)
    chat.answer(fenced(FLOWCHART))
    chat.shown_in(chat.diagrams.first)
    screens = accessibility.Screens(chat.page)
    screens.measure("a diagram on a phone")
    screens.check()
    assert overflow(chat.page) == 0


@pytest.mark.nightly
def test_without_what_draws_the_source_is_shown(drawn: Callable[..., Drawn]) -> None:
    chat = drawn()
    chat.context.route("**/assets/mermaid*", lambda route: route.abort())
    chat.answer(fenced(FLOWCHART))
    sync_api.expect(chat.diagrams.locator(".diagram-note")).to_have_text(LATE)
    sync_api.expect(chat.diagrams.locator("pre")).to_have_text(FLOWCHART.rstrip())
    assert chat.diagrams.get_by_role("button", name="Show source").count() == 0


@pytest.mark.nightly
def test_diagrams_out_of_sight_are_drawn_when_they_come_near(drawn: Callable[..., Drawn]) -> None:
    chat = drawn()
    far = "\n\n".join(f"Paragraph {number}. " + "Words. " * 60 for number in range(60))
    chat.answer(f"{fenced(FLOWCHART)}\n\n{far}\n\n{fenced(SEQUENCE)}")
    chat.page.locator(".scroll").evaluate("box => box.scrollTo(0, 0)")
    chat.shown_in(chat.diagrams.first)
    chat.page.locator(".scroll").evaluate("box => box.scrollTo(0, box.scrollHeight)")
    chat.shown_in(chat.diagrams.last)


@pytest.mark.nightly
def test_a_served_page_and_a_shared_chat_draw_diagrams(
    tabs: Callable[..., Opener], scripted_stack: Stack, tmp_path: Path
) -> None:
    stack = scripted_stack
    open_tab = tabs(stack, **DESKTOP, service_workers="allow")
    with httpx.Client(base_url=stack.url, headers=stack.headers, timeout=30.0) as owner:
        items = [message("user", "Draw it."), message("assistant", fenced(FLOWCHART, SEQUENCE))]
        made = owner.post("/v1/conversations", json={"title": "Drawn", "items": items}).json()
        share = owner.post(f"/v1/conversations/{made['id']}/share", json={"expires_in": 3600})
        policy = owner.get("/diagram.html").headers["content-security-policy"]
    assert policy == page.DIAGRAM_POLICY
    shared = open_tab()
    asked: list[str] = []
    shared.page.context.on("request", lambda request: asked.append(request.url))
    shared.page.goto(stack.url + share.json()["url_path"])
    both_are_drawn(shared.page)
    shared.page.screenshot(path=tmp_path / "shared.png")

    chat = open_tab().open()
    chat.page.evaluate(CONTROLLED)
    chat.page.goto(f"{stack.url}/#c={made['id']}")
    chat.page.reload()
    both_are_drawn(chat.page)
    chat.page.screenshot(path=tmp_path / "chat.png")
    assert all(url.startswith((stack.url, stack.url.replace("http", "ws"))) for url in asked)
    kept = chat.page.evaluate(
        """async () => {
            const found = [];
            for (const name of await caches.keys()) {
                for (const { url } of await (await caches.open(name)).keys()) found.push(url);
            }
            return found;
        }"""
    )
    assert any("/assets/markdown" in url for url in kept)
    assert not any("mermaid" in url or "diagram" in url for url in kept)
    assert shared.complained == chat.complained == []

    chat.page.context.set_offline(True)
    chat.page.reload()
    notes = chat.page.locator(".diagram-note")
    sync_api.expect(notes).to_have_text([LATE, LATE])
    sync_api.expect(chat.page.locator("pre").first).to_have_text(FLOWCHART.rstrip())


def both_are_drawn(tab: sync_api.Page) -> None:
    sync_api.expect(tab.locator(".diagram[data-shown] iframe")).to_have_count(2)
    for place, text in enumerate(("Is it new?", "POST /v1/responses")):
        frame = tab.frame_locator("iframe.diagram-frame").nth(place)
        sync_api.expect(frame.get_by_text(text).first).to_be_visible()
