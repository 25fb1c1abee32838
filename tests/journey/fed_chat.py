"""The built page in a real browser, with a script in place of the services."""

from __future__ import annotations

from pathlib import Path

from playwright import sync_api

from tests.journey.chat_page import Chat
from tests.journey.conftest import Stack
from tests.support import fed_page


class Fed(Chat):
    """A tab whose services are a script."""

    def __init__(self, context: sync_api.BrowserContext) -> None:
        super().__init__(context.new_page(), Stack(fed_page.ORIGIN, "", "", Path(), "none"))
        self.blocks = self.turn.locator(".body > *")
        self.thinking = self.turn.locator(".thinking")
        self.calls = self.turn.locator(".call")
        self.spoken = self.page.locator("[aria-live=polite].sr-only")

    def seen(self, number: int) -> None:
        """Until the event with this number is drawn."""
        self.page.wait_for_selector(f'.turn:last-child[data-seq="{number}"]')
