"""The page's tests are fed with what the services send."""

from __future__ import annotations

from tests.support import page_events


def test_the_pages_recorded_events_are_those_of_today() -> None:
    """If not, and this is meant: `python -m tests.support.page_events` writes them anew."""
    assert page_events.FILE.read_text() == page_events.text(page_events.made())
    assert page_events.COMPACT_FILE.read_text() == page_events.text(page_events.compact())
