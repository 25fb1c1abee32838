"""Draws the chat page's icons as PNG from its SVG, for browsers that install it:
`scripts/page_icons.py CHROMIUM`, with the path of a Chromium. To be run when the SVG changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from playwright import sync_api

FOLDER: Final = Path(__file__).resolve().parents[1] / "frontend" / "public"
SIZES: Final = (192, 512)
# A system cuts a maskable icon to a shape of its own: the ground fills the square, and what counts
# is in the circle of 80 %.
CORNERS: Final = ' rx="9"'
MASKABLE_VIEW: Final = "-3 -3 38 38"
STYLE: Final = "<style>body { margin: 0 } svg { display: block }</style>"


def maskable(svg: str) -> str:
    """The icon without corners and with a wider margin."""
    ground = '<rect width="32" height="32"'
    assert ground + CORNERS in svg, "the SVG has another form than this script knows"
    wide = svg.replace(ground + CORNERS, '<rect x="-3" y="-3" width="38" height="38"')
    return wide.replace('viewBox="0 0 32 32"', f'viewBox="{MASKABLE_VIEW}"')


def main() -> None:
    """Write four files next to the SVG."""
    svg = (FOLDER / "icon.svg").read_text()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
        for name, images in (("icon", svg), ("icon-maskable", maskable(svg))):
            for size in SIZES:
                page = browser.new_page(viewport={"width": size, "height": size})
                page.set_content(
                    f"<style>body {{ margin: 0 }} svg {{ display: block }}</style>{images}"
                )
                page.screenshot(path=FOLDER / f"{name}-{size}.png", omit_background=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
