"""What an answer and a question look like on the chat page: formulas, footnotes, wide tables, text
that reads from the right, long questions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, MOBILE, Opener, copying, overflow
from tests.journey.conftest import Stack
from tests.journey.fed_chat import Fed
from tests.support import accessibility, fed_page, page_events

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

TEXT = r"""# The quadratic formula

The equation \(ax^2 + bx + c = 0\) has the roots[^roots]

\[
x_{1,2} = \frac{-b \pm \sqrt{b^2 - 4ac}}{2a},
\]

so with $a = 1$ and *some* luck, $x_1 * x_2 = c$. It costs $5 and not $6.[^1]

| name | formula | remark |
|------|---------|--------|
| long_name_of_a_norm | $\|v\| = \sqrt{|x|^2 + |y|^2}$ | WIDE |
| sum | $\sum_{i=1}^{n} i = \frac{n(n+1)}{2}$ | `$code$` |

$$
\begin{aligned} \vec{v} \cdot \widehat{abc} &= \boxed{42} \\ &\xrightarrow{n \to \infty}
\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix} \end{aligned}
$$

```python
price = "$5"  # \(no formula\)
```

A wrong one: $\frac{1$ stays as it is.

[^roots]: Both, if $b^2 > 4ac$.
[^1]: In *real* money.
""".replace("WIDE", "`" + "wide_" * 30 + "`")
RIGHT_TO_LEFT = r"""# مرحبا بالعالم

هذه فقرة مع `code` وصيغة $x_1 = 2$ في السطر.

- عنصر أول
- item in English
- עוד פריט

> اقتباس

| عمود | ثان |
|------|-----|
| نص | English |

An English paragraph.
"""


class Shown(Fed):
    """A tab with one question, whose answer the test feeds."""

    def __init__(self, browser_: sync_api.Browser, question: str, **options: Any) -> None:
        self.context = browser_.new_context(**options)
        self.context.set_default_timeout(30_000)
        self.context.add_init_script(WATCH)
        self.services = fed_page.Services(self.context)
        super().__init__(self.context)
        self.open()
        self.ask(question)

    def answer(self, text: str) -> None:
        self.services.feed(page_events.spoken(("", text)))
        self.status("completed")

    @property
    def prose(self) -> sync_api.Locator:
        return self.turn.locator(".prose")


# Counts what the answer ever showed in italics, and keeps what is copied.
WATCH = """
window.italics = new Set();
new MutationObserver(() => {
  for (const each of document.querySelectorAll('.prose em')) window.italics.add(each.textContent);
}).observe(document, { subtree: true, childList: true, characterData: true });
Object.defineProperty(navigator, 'clipboard', {
  value: { writeText: async (text) => { window.copied = text; } },
});
addEventListener('copy', (event) => { window.copied = event.clipboardData.getData('text/plain'); });
"""


@pytest.fixture
def shown(browser: sync_api.Browser) -> Iterator[Callable[..., Shown]]:
    with contextlib.ExitStack() as opened:

        def show(question: str, **options: Any) -> Shown:
            one = Shown(browser, question, **(options or DESKTOP))
            opened.callback(one.context.close)
            return one

        yield show


def overflowing(box: sync_api.Locator) -> bool:
    found: bool = box.evaluate("box => box.scrollWidth > box.clientWidth + 1")
    return found


@pytest.mark.nightly
def test_formulas_are_drawn_as_they_come_and_copied_as_they_were_written(
    shown: Callable[..., Shown],
) -> None:
    chat = shown("What are its roots?")
    events = page_events.spoken(("", TEXT))
    for at in range(0, len(events), 9):
        chat.services.feed(events[at : at + 9])
        chat.page.wait_for_timeout(25)
    chat.status("completed")
    drawn = chat.prose.locator(".math .katex")
    sync_api.expect(drawn).to_have_count(8)
    assert chat.page.evaluate("[...window.italics]") == ["some", "real"]
    # What is read aloud, and what is seen.
    assert chat.prose.locator("math msqrt").count() == 2
    height = drawn.nth(1).locator(".katex-html").bounding_box()
    assert height is not None
    assert 30 < height["height"] < 90, "the fraction has its styles"
    family = drawn.first.evaluate(
        "async (one) => { await document.fonts.ready; return document.fonts.check("
        "'16px KaTeX_Math') && getComputedStyle(one).fontFamily; }"
    )
    assert family.startswith("KaTeX_Main")
    wrong = chat.prose.locator(".math.source")
    sync_api.expect(wrong).to_have_text("$\\frac{1$")
    assert (wrong.get_attribute("title") or "").startswith("This formula cannot be drawn: ")
    assert "It costs $5 and not $6." in chat.shown
    chat.turn.get_by_role("button", name="Copy answer").click()
    assert chat.page.evaluate("window.copied") == TEXT
    chat.prose.evaluate("prose => getSelection().selectAllChildren(prose)")
    chat.page.keyboard.press("Control+c")
    selected = chat.page.evaluate("window.copied")
    display = TEXT[TEXT.index(r"\[") : TEXT.index(r"\]") + 2]
    assert (
        f"has the roots1\n\n{display}\n\nso with $a = 1$ and some luck, $x_1 * x_2 = c$."
        in selected
    )
    chat.turn.get_by_role("button", name="Copy code").click()
    assert chat.page.evaluate("window.copied") == 'price = "$5"  # \\(no formula\\)'
    assert chat.complained == []


@pytest.mark.nightly
def test_nothing_moves_when_a_note_comes(shown: Callable[..., Shown]) -> None:
    chat = shown("What are its roots?")
    text = f"# Roots[^1] of it\n\nThey are[^2] two. {'Many words. ' * 20}\n\n[^1]: A.\n[^2]: B.\n"
    events = page_events.spoken(("", text))
    until = next(at for at in range(len(events)) if "\n\n[" in said(events[:at]))
    chat.services.feed(events[:until])
    numbers = chat.prose.locator(".note-ref")
    sync_api.expect(numbers).to_have_text(["1", "2"])
    sync_api.expect(chat.turn.get_by_role("button", name="Footnote 1")).to_be_disabled()
    before = chat.prose.evaluate(PLACES)
    chat.services.feed(events[until:])
    chat.status("completed")
    sync_api.expect(chat.turn.get_by_role("button", name="Footnote 1", exact=True)).to_be_enabled()
    assert chat.prose.evaluate(PLACES) == before


# Where the numbers, and the texts beside them, stand.
PLACES = """(prose) => [...prose.querySelectorAll('.note-ref')].flatMap((number) => {
  const behind = document.createRange();
  behind.selectNode(number.nextSibling);
  return [number, number.firstChild, behind].flatMap((each) => {
    const { x, y, width, height } = each.getBoundingClientRect();
    return [x, y, width, height];
  });
})"""


def said(events: list[dict[str, Any]]) -> str:
    return "".join(each.get("delta", "") for each in events)


@pytest.mark.nightly
def test_footnotes_lead_to_their_notes_and_back(shown: Callable[..., Shown]) -> None:
    chat = shown("What are its roots?")
    chat.answer(TEXT)
    address = chat.page.url
    chat.services.next_response()
    chat.ask("Again.")
    chat.answer(TEXT)
    focused = (
        "[document.activeElement.textContent, document.activeElement.closest('.turn')"
        " === document.querySelector('.turn:last-child')]"
    )
    chat.turn.get_by_role("button", name="Footnote 2", exact=True).click()
    assert chat.page.evaluate(focused) == ["In real money.↩", True]
    chat.turn.get_by_role("button", name="Back to footnote 2 in the text").click()
    assert chat.page.evaluate(focused) == ["2", True]
    assert chat.page.url == address
    assert chat.page.locator(".turn [id]").count() == 0
    assert chat.complained == []


@pytest.mark.nightly
def test_axe_finds_nothing_in_maths_tables_footnotes_and_code(
    shown: Callable[..., Shown], tmp_path: Path
) -> None:
    chat = shown("What are its roots?\n" * 14)
    chat.answer(TEXT)
    sync_api.expect(chat.prose.locator(".math .katex")).to_have_count(8)
    screens = accessibility.Screens(chat.page)
    screens.look("a text with everything")
    for scheme in ("dark", "light"):
        chat.page.emulate_media(color_scheme=scheme)
        for name, part in (("top", chat.turn), ("end", chat.prose.locator(".notes"))):
            part.scroll_into_view_if_needed()
            chat.page.screenshot(path=tmp_path / f"{scheme}-{name}.png")
    chat.page.set_viewport_size(MOBILE["viewport"])
    chat.page.wait_for_timeout(300)
    screens.look("the same on a phone", ["light"])
    screens.check()
    assert chat.complained == []


@pytest.mark.nightly
def test_what_is_wide_scrolls_within_itself_on_a_phone(
    shown: Callable[..., Shown], tmp_path: Path
) -> None:
    chat = shown("What are its roots?", **MOBILE)
    chat.answer(TEXT + "\n| a | b |\n|---|---|\n| 1 | 2 |\n\n$$" + "a + " * 40 + "b$$\n")
    sync_api.expect(chat.prose.locator(".math .katex")).to_have_count(9)
    wide, narrow = chat.prose.locator(".table").all()
    sync_api.expect(wide).to_have_attribute("tabindex", "0")
    sync_api.expect(chat.prose.get_by_role("group", name="Table")).to_have_count(1)
    assert overflowing(wide)
    assert narrow.get_attribute("tabindex") is None
    sync_api.expect(chat.prose.get_by_role("group", name="Formula")).to_have_count(1)
    wide.focus()
    chat.page.keyboard.press("ArrowRight")
    chat.page.wait_for_function("() => document.activeElement.scrollLeft > 0")
    assert overflow(chat.page) == 0
    assert not overflowing(chat.page.locator(".scroll"))
    for name, part in (("table", wide), ("top", chat.turn.locator("h1"))):
        part.scroll_into_view_if_needed()
        chat.page.screenshot(path=tmp_path / f"{name}.png")


@pytest.mark.nightly
def test_text_from_the_right_reads_from_the_right(
    shown: Callable[..., Shown], tmp_path: Path
) -> None:
    chat = shown("مرحبا، كيف الحال؟\nAnd in English.")
    chat.answer(RIGHT_TO_LEFT)
    sync_api.expect(chat.prose.locator(".math .katex")).to_have_count(1)
    directions = chat.prose.evaluate(
        """prose => [
            'h1', 'p', 'ul', 'li:nth-child(1)', 'li:nth-child(2)', 'li:nth-child(3)', 'blockquote',
            'table', 'td:nth-child(1)', 'td:nth-child(2)', 'p code', '.math',
            ':scope > p:last-of-type',
        ].map((each) => getComputedStyle(prose.querySelector(each)).direction)"""
    )
    rtl, ltr = "rtl", "ltr"
    assert directions == [rtl, rtl, rtl, rtl, ltr, rtl, rtl, rtl, rtl, ltr, ltr, ltr, ltr]
    assert chat.turn.locator(".question-text").evaluate("e => getComputedStyle(e).direction") == rtl
    chat.page.screenshot(path=tmp_path / "right-to-left.png")
    assert chat.complained == []


@pytest.mark.nightly
def test_a_long_question_is_cut_and_its_formula_comes_back_drawn(
    tabs: Callable[..., Opener], scripted_stack: Stack
) -> None:
    chat = copying(tabs(scripted_stack)()).open()
    question = "Solve $x_1 * x_2 = 4$ for me.\n" + "More.\n" * 13 + "Thanks."
    chat.ask(question)
    text = chat.turn.locator(".question-text")
    button = chat.turn.get_by_role("button", name="Show all")
    sync_api.expect(button).to_have_attribute("aria-expanded", "false")
    assert text.text_content() == question
    cut = text.bounding_box()
    button.click()
    less = chat.turn.get_by_role("button", name="Show less")
    sync_api.expect(less).to_have_attribute("aria-expanded", "true")
    whole = text.bounding_box()
    assert cut is not None
    assert whole is not None
    assert cut["height"] < whole["height"]
    chat.status("completed")
    sync_api.expect(chat.turn.locator(".prose .math .katex")).to_have_count(1)
    said = chat.check_exact()
    assert "$x_1 * x_2 = 4$" in said
    assert chat.copied() == said
    assert chat.complaints == []
