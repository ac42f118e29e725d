"""Draws the HTML report of a profile for the README: its heat map of layers, as chromium shows it.

python docs/draw_page.py docs/page.png PROFILE
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright


def draw(picture: str, profile: str) -> None:
    """Write the picture."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "page.html"
        report = [sys.executable, "-m", "amp_doctor", "report", "--fail-on", "never", "--format", "html"]
        subprocess.run([*report, "-o", str(page), profile], check=True)
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        shown = chromium.new_page(viewport={"width": 1000, "height": 1400})
        shown.goto(page.as_uri())
        shown.add_style_tag(content="nav { position: static !important; } .scroll { max-height: 15rem !important; }")
        shown.locator("#heat").scroll_into_view_if_needed()
        shown.wait_for_selector("#heat .main-svg")
        shown.locator("#layers").screenshot(path=picture)
        chromium.close()


if __name__ == "__main__":
    draw(*sys.argv[1:])
