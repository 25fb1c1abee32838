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
_RUN: Final = """async () => {
  const found = await axe.run(document);
  return {
    passes: found.passes.length,
    findings: found.violations.flatMap((each) => each.nodes.map(
      (node) => `${each.id}: ${node.failureSummary} (${node.html})`,
    )),
  };
}"""


class Screens:
    """Looks at the screens of one page, and says at the end what is wrong with them.

    Attributes:
        found: of each look, what breaks a rule of axe's default set.
    """

    def __init__(self, page: sync_api.Page) -> None:
        self._page = page
        self.found: list[str] = []

    def look(self, screen: str, schemes: Sequence[Scheme] = ("dark", "light")) -> None:
        """Look at what is shown now, in these themes. The browser asks for the last one of them
        afterwards."""
        for scheme in schemes:
            self._page.emulate_media(color_scheme=scheme)
            # Not by an element: the page's policy allows no script but its own.
            if not self._page.evaluate("'axe' in window"):
                self._page.evaluate(AXE.read_text())
            self._page.evaluate(_AT_REST)
            said: dict[str, Any] = self._page.evaluate(_RUN)
            assert said["passes"], "no rule looked at anything"
            self.found += [f"{screen}, {scheme}: {each}" for each in said["findings"]]

    def check(self) -> None:
        """Nothing was found."""
        assert not self.found, "\n".join(self.found)
