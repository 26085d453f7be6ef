"""Chromium for the tests, and a page that records what must not happen."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCREENSHOTS = Path(__file__).parents[2] / "out" / "page"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "ARR_COC_BROWSER"  # environment variable: a missing browser is a failure instead of a skip


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def launch_options() -> dict[str, Any]:
    """Chromium's sandbox does not work for the root user."""
    return {"executable_path": executable(), "args": ["--no-sandbox"] if os.geteuid() == 0 else []}


@dataclass(eq=False)
class WatchedPage:
    """A browser page that records console errors, exceptions, and requests to other servers."""

    page: Any
    address: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:", "about:")):
            self.problems.append(f"request to {request.url}")

    def open(self, query: str = "") -> Any:
        self.page.goto(self.address + query)
        self.page.locator("#picture img").wait_for()
        return self.page

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
