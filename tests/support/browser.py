"""Pictures of what a browser test sees."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page


def screenshot(page: Page, name: str) -> None:
    """Keep a picture, if ``DISTLOCK_SCREENSHOTS`` names a folder to keep it in."""
    folder = os.environ.get("DISTLOCK_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
