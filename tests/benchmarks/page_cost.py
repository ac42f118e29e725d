"""How long a browser takes over the HTML report of a model with 2,000 layers, until its heat map is drawn.

python -m tests.benchmarks.page_cost [ROUNDS]
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

from tests.report.pages import big, page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAINTED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"


def opened(browser: Browser, address: str) -> tuple[float, float, float]:
    """Milliseconds until the page can be used, until the heat map is painted, and of the processor in all."""
    context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    shown = context.new_page()
    session = context.new_cdp_session(shown)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    shown.goto(address)
    shown.wait_for_selector("html[data-ready=yes]", state="attached")
    ready = shown.evaluate("performance.now()")
    shown.evaluate("document.getElementById('heat').scrollIntoView()")
    shown.wait_for_selector("#heat .heatmaplayer image", state="attached")
    painted = shown.evaluate(PAINTED)
    measured = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return ready, painted, 1000 * measured["TaskDuration"]


def main(rounds: int) -> None:
    """Print the medians."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "page.html"
        file.write_text(page(big()), "utf-8")
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        times = [opened(browser, file.as_uri()) for _ in range(rounds)]
        browser.close()
        print(f"a page of 2,000 layers, {file.stat().st_size / 1e6:.1f} MB, in milliseconds (medians of {rounds}):")
        for name, taken in zip(("usable", "heat map painted", "processor"), zip(*times, strict=True), strict=True):
            print(f"  {name:18}{median(taken):6.0f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
