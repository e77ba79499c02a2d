"""Reports in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

__all__ = ["Sheet", "launched", "open_page"]

#: Names of Chromium's program, where Playwright has none of its own.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def launched() -> Iterator[Any]:
    """A browser: Playwright keeps an event loop running meanwhile, beside which no other begins."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("no Chromium is installed")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Sheet:
    """A page in the browser, with all that it complained of and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    @property
    def caption(self) -> str:
        return str(self.page.locator(".rv-caption").first.inner_text())

    @property
    def title(self) -> str:
        return str(self.page.locator(".rv-head h3").first.inner_text())

    def rows(self) -> list[str]:
        return list(self.page.locator(".rv-row-title").all_inner_texts())

    def filter(self, name: str) -> int:
        button = self.page.locator(".rv-filters button", has_text=name)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        return int(button.locator(".rv-count").inner_text().replace(",", ""))

    def open(self, episode: str) -> None:
        address = self.page.url.partition("#")[0]
        self.page.goto(f"{address}#episode={episode}")
        expect(self.page.get_by_role("link", name="Link")).to_have_attribute("href", f"#episode={episode}")

    def press(self, *keys: str) -> None:
        self.page.locator(".rv-head").first.click()
        for key in keys:
            self.page.keyboard.press(key)

    def overflow(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def unnamed_controls(self) -> list[str]:
        """The controls and pictures of which a screen reader could say nothing."""
        found: list[str] = self.page.evaluate(
            """[...document.querySelectorAll('button, select, input, a, svg[role=img], [role=region]')]
                .filter((node) => !(node.ariaLabel || node.textContent.trim() || node.closest('label')))
                .filter((node) => !node.getAttribute('aria-labelledby')).map((node) => node.outerHTML)"""
        )
        return found

    def close(self) -> None:
        """Closes the page, which must not have complained."""
        assert self.complaints == []
        self.page.context.close()


def open_page(browser: Any, address: str, ready: str = ".rv-turn", **context: Any) -> Sheet:
    """A page whose viewer shows what ``ready`` selects, unless its scripts may not run."""
    sheet = Sheet(browser.new_context(**{"reduced_motion": "reduce", **context}).new_page())
    sheet.page.on("console", lambda message: sheet.complaints.append(message.text))
    sheet.page.on("pageerror", lambda error: sheet.complaints.append(str(error)))
    sheet.page.on("request", lambda request: sheet.asked.append(request.url))
    sheet.page.goto(address)
    if context.get("java_script_enabled", True):
        sheet.page.wait_for_selector(ready)
    return sheet
