"""Use a page with the keyboard alone."""

from __future__ import annotations

from typing import Final

from playwright.async_api import Page

_MAX_STEPS: Final = 400
_NAME: Final = """() => {
  const element = document.activeElement;
  const label = element?.labels?.[0]?.querySelector("span, strong")?.textContent ?? "";
  const field = element?.closest("fieldset")?.querySelector("legend code")?.textContent ?? "";
  return [field, element?.getAttribute("aria-label") || label || element?.textContent || ""].join(" ").trim();
}"""


async def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control with this beginning of its name has the focus."""
    seen: list[str] = []
    for _ in range(_MAX_STEPS):
        await page.keyboard.press("Tab")
        found: str = await page.evaluate(_NAME)
        if found.startswith(name):
            return
        seen.append(found[:60])
    raise AssertionError(f"no control {name!r} can be reached with Tab, only {sorted(set(seen))}")
