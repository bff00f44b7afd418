"""Take the screenshots of the web console in `docs/pictures`, light and dark: `python -m tools.screenshots`.

For maintainers, after a change of a screen. They show a real node with the example fleet, in a real browser.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from base64 import b64decode
from pathlib import Path
from typing import Final, NamedTuple

from playwright.async_api import Browser, Page, ViewportSize, async_playwright

from tools.fleet.fleet import Fleet, running_fleet
from tools.install_browser import NoBrowser, install

PICTURES: Final = Path(__file__).resolve().parents[1] / "docs" / "pictures"
MAX_BYTES: Final = 80_000
_QUALITY: Final = 86
SCHEMES: Final = ("light", "dark")
_WIDE: Final = ViewportSize(width=1200, height=750)
_NARROW: Final = ViewportSize(width=360, height=640)


class Shot(NamedTuple):
    """A picture: its name, the path of its screen, and a text that is shown when it is complete."""

    name: str
    path: str
    marker: str
    is_narrow: bool = False
    last: str = "main h1"
    """What is drawn last."""


SHOTS: Final = (
    Shot("needs", "", "Which currency should gift cards use?"),
    Shot("fleet", "fleet", "waits for"),
    Shot("jobs", "jobs?view=graph", "release.notes"),
    Shot("conflict", "conflicts/{conflict}", "use the blue pool after 18:00"),
    Shot("costs", "costs", "Tokens a day", last=".u-legend"),
    Shot("phone", "", "Which currency should gift cards use?", is_narrow=True),
)


def picture(shot: Shot, scheme: str) -> Path:
    """Return the file of a picture."""
    return PICTURES / f"console-{shot.name}-{scheme}.webp"


async def take_all(browser: Browser, fleet: Fleet) -> None:
    """Take all pictures, each in a window of its own."""
    for shot in SHOTS:
        context = await browser.new_context(
            base_url=fleet.node.url,
            viewport=_NARROW if shot.is_narrow else _WIDE,
            reduced_motion="reduce",
        )
        page = await context.new_page()
        await page.goto(await fleet.node.console_path("alice"))
        await page.locator("main h1").wait_for()
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            await page.goto(f"/ui/{shot.path.format(**fleet.ids)}")
            await page.locator("main").get_by_text(shot.marker).first.wait_for()
            await page.locator(shot.last).first.wait_for()
            await page.evaluate("document.fonts.ready")
            picture(shot, scheme).write_bytes(await _webp(page))
        await context.close()


async def _webp(page: Page) -> bytes:
    """Return what a page shows as WebP, a quarter of the size of a PNG."""
    browser = await page.context.new_cdp_session(page)
    taken = await browser.send("Page.captureScreenshot", {"format": "webp", "quality": _QUALITY})
    return b64decode(taken["data"])


async def _run(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_fleet(Path(folder)) as fleet, async_playwright() as driver:
            browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            await take_all(browser, fleet)
            await browser.close()


def main() -> int | str:
    """Take the pictures; exit with a message if one is too large, or there is no browser."""
    try:
        asyncio.run(_run(install()))
    except NoBrowser as reason:
        return f"screenshots: {reason}"
    taken = [picture(shot, scheme) for shot in SHOTS for scheme in SCHEMES]
    for path in taken:
        print(f"{path.stat().st_size:>8} {path.name}")
    large = [path.name for path in taken if path.stat().st_size > MAX_BYTES]
    return f"screenshots: larger than {MAX_BYTES:,} bytes: {', '.join(large)}" if large else 0


if __name__ == "__main__":
    sys.exit(main())
