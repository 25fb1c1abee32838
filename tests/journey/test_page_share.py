"""What a link to a conversation leads to, in a browser that has no session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright import sync_api

from tests.journey.chat_page import DESKTOP, MOBILE
from tests.journey.conftest import Stack
from tests.support import accessibility

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ANSWER = """**Rain** falls when $m g$ wins:

```python
print('wet')
```

| a | b |
|---|---|
| 1 | 2 |"""
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQ"
    "GAhKmMIQAAAABJRU5ErkJggg=="
)


def message(role: str, text: str, *images: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    shown = [{"type": "input_image", "image_url": url} for url in images]
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}, *shown]}


def test_a_link_shows_the_chat_to_anyone_until_it_is_revoked(
    browser: sync_api.Browser, scripted_stack: Stack, tmp_path: Path
) -> None:
    stack = scripted_stack
    with httpx.Client(base_url=stack.url, headers=stack.headers, timeout=30.0) as owner:
        items = [message("user", "Why does it rain?", PIXEL), message("assistant", ANSWER)]
        made = owner.post("/v1/conversations", json={"title": "Rain", "items": items}).json()
        one = f"/v1/conversations/{made['id']}"
        share = owner.post(f"{one}/share", json={"expires_in": 3600}).json()
        owner.post(f"{one}/items", json={"items": [message("user", "Said later")]})

        context = browser.new_context(**DESKTOP)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(30_000)
        page = context.new_page()
        screens = accessibility.Screens(page)
        complaints: list[str] = []
        asked: list[str] = []
        page.on("console", lambda m: complaints.append(m.text) if m.type != "log" else None)
        page.on("pageerror", lambda e: complaints.append(str(e)))
        page.on("request", lambda r: asked.append(r.url.removeprefix(stack.url)))
        page.goto(stack.url + share["url_path"])
        sync_api.expect(page.locator("h1")).to_have_text("Rain")
        sync_api.expect(page).to_have_title("Rain – Tailrace")
        sync_api.expect(page.locator(".shared-dates")).to_contain_text("Shared on")
        sync_api.expect(page.locator(".question-text")).to_have_text("Why does it rain?")
        sync_api.expect(page.locator(".rest")).to_have_text("1 image is not shown here.")
        prose = page.locator(".prose")
        sync_api.expect(prose.locator("strong")).to_have_text("Rain")
        sync_api.expect(prose.locator(".katex")).to_have_count(1)
        sync_api.expect(prose.locator("td")).to_have_text(["1", "2"])
        page.get_by_role("button", name="Copy code").click()
        sync_api.expect(page.locator(".copy-code")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == "print('wet')"
        assert page.locator("textarea, select").count() == 0
        assert "Said later" not in page.content()
        screens.look("a shared chat")
        page.screenshot(path=tmp_path / "shared.png")
        page.set_viewport_size(MOBILE["viewport"])
        assert page.eval_on_selector(".shared", "e => e.scrollWidth - e.clientWidth") == 0
        page.screenshot(path=tmp_path / "phone.png")
        assert [url for url in asked if url.startswith("/v1/")] == [f"/v1/shared/{share['token']}"]
        assert context.storage_state() == {"cookies": [], "origins": []}
        assert complaints == []

        assert owner.delete(f"{one}/shares/{share['id']}").status_code == 200
        page.reload()
        sync_api.expect(page.locator("h1")).to_have_text("This link does not work")
        assert page.locator(".turn").count() == 0
        screens.look("a link that was revoked")
        page.screenshot(path=tmp_path / "gone.png")
        assert all("Failed to load resource" in each for each in complaints)
        page.get_by_role("link", name="Open Tailrace").click()
        page.wait_for_selector("#question")
        context.close()
        screens.check()

        german = browser.new_context(**DESKTOP, locale="de-DE")
        page = german.new_page()
        page.goto(f"{stack.url}/s/no-such-link")
        sync_api.expect(page.locator("html")).to_have_attribute("lang", "de")
        sync_api.expect(page.locator("h1")).to_have_text("Dieser Link funktioniert nicht")
        german.close()
