"""Debian's Chromium, or whichever is there, driven from the tests."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCREENS = Path(__file__).parents[2] / "out" / "page"  # what the tests saw
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "ARR_COC_BROWSER"  # set where a missing browser is a failure, not a reason to leave tests out


def executable() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def options() -> dict[str, Any]:
    """How Chromium is started: the root user has no sandbox."""
    return {"executable_path": executable(), "args": ["--no-sandbox"] if os.geteuid() == 0 else []}


@dataclass(eq=False)
class Watched:
    """A page, and everything on it that should not be: complaints in the console, and requests to anywhere else."""

    page: Any
    address: str
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.wrong.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:", "about:")):
            self.wrong.append(f"request to {request.url}")

    def open(self, query: str = "") -> Any:
        self.page.goto(self.address + query)
        self.page.locator("#picture img").wait_for()
        return self.page

    def screen(self, name: str) -> None:
        SCREENS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENS / f"{name}.png", full_page=True)
