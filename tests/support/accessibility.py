"""What axe-core finds wrong with a page in a browser: contrast, names, roles, landmarks.

It is a development package of `frontend/`, so it is there wherever the pages were built.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from playwright import sync_api

from tailrace.local import paths

Scheme = Literal["dark", "light"]
AXE: Final = paths.FRONTEND / "node_modules" / "axe-core" / "axe.min.js"
# Contrast in the middle of a transition says nothing, so each one is taken to its end.
_AT_REST: Final = """async () => {
  await Promise.all(document.getAnimations().map((each) => {
    const { endTime } = each.effect.getComputedTiming();
    return Number.isFinite(endTime) ? each.finished.catch(() => null) : null;
  }));
}"""
# A frame is a part of a page, which has the landmarks and the first heading for both.
_RUN: Final = """async () => {
  const off = { enabled: false };
  const ofPages = { 'landmark-one-main': off, 'page-has-heading-one': off };
  const found = await axe.run(document, window === window.top ? {} : { rules: ofPages });
  return {
    passes: found.passes.length,
    findings: found.violations.flatMap((each) => each.nodes.map(
      (node) => `${each.id}: ${node.failureSummary} (${node.html})`,
    )),
  };
}"""
# What lies in a line of text is free (WCAG 2.5.8, "Inline"), and a label belongs to its box.
_SMALL: Final = """() => {
  const least = matchMedia('(pointer: coarse)').matches ? 44 : 24;
  const all = 'a[href], button, input, select, summary, textarea, [role=button]';
  const found = [];
  for (const each of document.querySelectorAll(all)) {
    if (each.closest('.prose') && each.matches('a, .to-note, .from-note, input')) continue;
    if (!each.checkVisibility({ visibilityProperty: true }) || each.closest('[inert]')) continue;
    const boxes = [each, ...(each.labels ?? [])].map((one) => one.getBoundingClientRect());
    const side = (size) => Math.max(...boxes.map((box) => box[size]));
    if (side('width') < least - 0.5 || side('height') < least - 0.5) {
      const size = `${side('width')} x ${side('height')} of ${least}`;
      found.push(`${size}: ${each.outerHTML.slice(0, 120)}`);
    }
  }
  return found;
}"""


def _in_sight(frame: sync_api.Frame) -> bool:
    """Whether the page shows it; a frame that only works for the page is not read."""
    return frame.parent_frame is None or frame.frame_element().is_visible()


def _look(frame: sync_api.Frame) -> list[str]:
    # Not by an element: the policies of page and frames allow no script but the page's own. And in
    # each frame by itself: one without an origin cannot be reached from its page.
    if not frame.evaluate("'axe' in window"):
        frame.evaluate(AXE.read_text())
    frame.evaluate(_AT_REST)
    said: dict[str, Any] = frame.evaluate(_RUN)
    assert said["passes"], "no rule looked at anything"
    found: list[str] = said["findings"]
    return found


class Screens:
    """Looks at the screens of one page, and says at the end what is wrong with them.

    Attributes:
        found: of each look, what breaks a rule of axe's default set. What is in a frame counts if
            the frame is in sight.
    """

    def __init__(self, page: sync_api.Page) -> None:
        self._page = page
        self.found: list[str] = []

    def look(self, screen: str, schemes: Sequence[Scheme] = ("dark", "light")) -> None:
        """Look at what is shown now, in these themes. The browser asks for the last one of them
        afterwards."""
        for scheme in schemes:
            self._page.emulate_media(color_scheme=scheme)
            frames = [frame for frame in self._page.frames if _in_sight(frame)]
            for frame in frames:
                name = (
                    "" if frame == self._page.main_frame else f", frame {frame.name or frame.url}"
                )
                self.found += [f"{screen}, {scheme}{name}: {each}" for each in _look(frame)]

    def measure(self, screen: str) -> None:
        """Look for what can be pressed and is too small to be hit: below 44 CSS px for fingers, 24
        for a mouse."""
        self._page.evaluate(_AT_REST)
        small: list[str] = self._page.evaluate(_SMALL)
        self.found += [f"{screen}, too small: {each}" for each in small]

    def check(self) -> None:
        """Nothing was found."""
        assert not self.found, "\n".join(self.found)
