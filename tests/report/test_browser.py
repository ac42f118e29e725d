"""The HTML report in a real browser: nothing is complained about, and everything that can be done can be done by keys.

The browser is the chromium of the system (`make browser`), driven by playwright, which brings none of its own.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from amp_doctor.diagnosis.profile import Site
from amp_doctor.numerics.histogram import ExponentHistogram
from tests.report.pages import HOSTILE, big, named, page
from tests.report.samples import SICK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from amp_doctor.diagnosis.profile import Profile

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
Opened = tuple[Page, list[str]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert found, "no chromium: `make browser` installs it"
    with sync_playwright() as playwright:
        # As root there is no sandbox, and a container has little shared memory.
        launched = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield launched
        launched.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """`opened(text, width=..., scheme=...)` shows a page; whatever the browser complains about fails the test."""
    said: list[str] = []
    contexts: list[Any] = []

    def show(text: str, width: int = 1200, scheme: Any = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(text, "utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        shown = context.new_page()
        shown.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        shown.on("pageerror", lambda error: said.append(str(error)))
        shown.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        shown.goto(file.as_uri())
        shown.wait_for_selector("html[data-ready=yes]", state="attached")
        return shown

    yield show
    for context in contexts:
        context.close()
    assert said == []


def drawn(shown: Page, chart: str) -> None:
    shown.locator(f"#{chart}").scroll_into_view_if_needed()
    shown.wait_for_selector(f"#{chart} .main-svg")


def names(shown: Page) -> list[str]:
    return shown.locator("#layers-table tbody .name").all_text_contents()


def test_every_chart_is_drawn_when_it_comes_into_view(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    for chart in ("heat", "curves", "time"):
        drawn(shown, chart)
    # The limits of float16 are drawn in, between the zones.
    labels = shown.locator("#heat .annotation-text").all_text_contents()
    assert labels == ["rounds to zero", "normal from", "overflows"]
    assert shown.locator("#heat .shapelayer path").count() == 5
    assert (
        shown.locator("#curves .legendtext").all_text_contents()
        == [
            "all: act. grad",
            "all: weight grad",
            "all: weight grad overflows",
        ]
        or shown.locator("#curves .legendtext").count() >= 2
    )
    assert shown.locator("#time .legendtext").all_text_contents() == [
        "loss",
        "loss not finite",
        "loss scale",
        "step skipped",
    ]


def test_layers_are_sorted_by_headings_and_by_the_list(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    # Worst first: decoder.wo overflows.
    assert names(shown)[0] == "decoder.wo"
    first = shown.locator("#layers-table .sorter").first
    first.click()
    assert names(shown) == ["decoder.wo", "encoder.rnn", "head"]
    first.click()
    assert names(shown) == ["head", "encoder.rnn", "decoder.wo"]
    assert shown.locator("#layers-table th[aria-sort=descending]").inner_text().startswith("Layer")
    shown.select_option("#order", "run")
    assert names(shown) == ["encoder.rnn", "decoder.wo", "head"]
    shown.select_option("#order", "large")
    assert names(shown)[0] == "decoder.wo"


def test_layers_are_filtered_by_words_and_by_what_is_wrong(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    shown.fill("#filter", "LSTM")
    assert names(shown) == ["encoder.rnn"]
    assert shown.inner_text("#layers-count") == "1 of 3 layers"
    shown.fill("#filter", "model.py linear")
    assert sorted(names(shown)) == ["decoder.wo", "head"]
    shown.fill("#filter", "nothing like it")
    assert names(shown) == []
    assert shown.inner_text("#layers-count") == "No layer is like that."
    shown.fill("#filter", "")
    shown.select_option("#only", "over")
    assert names(shown) == ["decoder.wo"]
    shown.select_option("#only", "finding")
    assert sorted(names(shown)) == ["decoder.wo", "encoder.rnn"]


def test_the_loss_scale_moves_gradients_and_what_they_lose(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    shown.select_option("#role", label="act. grad")
    shown.fill("#filter", "encoder")

    def lost(k: int) -> str:
        shown.locator("#shift").fill(str(k))
        assert shown.inner_text("#shift-told") == (str(2**k) if k < 20 else f"2^{k}")
        return shown.locator("#layers-table tbody td").first.inner_text()

    # N(0, 2^-24): below 2^-25 lie 38 % of the values, and hardly any once they are 2^16 times as large.
    assert lost(0) == "38%"
    assert lost(16) == "<0.1%"
    shown.select_option("#role", label="activation")
    assert shown.locator("#shift").is_disabled()


def test_overflow_is_told_to_the_last_digit(opened: Callable[..., Page]) -> None:
    """65519.9 becomes 65504 in float16, and 65520 infinity; in three digits the two are the same."""

    def outputs(largest: float) -> Profile:
        counts = ExponentHistogram.of([1.0, largest])
        layer = replace(SICK.layers[2], sites={"activation": Site("float32", counts)})
        return replace(SICK, layers=(layer,))

    shown = opened(page(outputs(65519.9)))
    assert shown.locator("#layers-table .bad").count() == 0
    shown = opened(page(outputs(65520.0)))
    assert shown.locator("#layers-table .bad").all_text_contents() == ["overflows"]


def test_another_formats_limits_can_be_drawn(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    drawn(shown, "heat")
    shown.select_option("#limits", label="float8_e4m3fn")
    assert shown.locator("#heat .annotation-text").all_text_contents()[2] == "saturates"
    shown.select_option("#limits", label="bfloat16")
    assert shown.locator("#layers-table .bad").count() == 0


def test_numbers_are_shown_on_hover(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    drawn(shown, "heat")
    box = shown.locator("#heat .nsewdrag").bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 8)
    shown.wait_for_selector("#heat .hoverlayer text")
    told = shown.locator("#heat .hoverlayer").text_content() or ""
    assert "decoder.wo" in told
    assert "model.py:41" in told
    assert "float16: overflows" in told


def test_the_heat_map_is_walked_through_by_keys(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    drawn(shown, "heat")
    shown.focus("#heat")
    shown.keyboard.press("ArrowDown")
    first = shown.inner_text("#heat-told")
    assert first.startswith("decoder.wo \u00b7 Linear, model.py:41 \u00b7 activation: ")
    shown.keyboard.press("ArrowLeft")
    assert shown.inner_text("#heat-told") != first
    shown.keyboard.press("ArrowDown")
    assert not shown.inner_text("#heat-told").startswith("decoder.wo")
    shown.keyboard.press("Escape")
    assert shown.inner_text("#heat-told") == ""


def test_every_control_is_reached_by_the_tab_key(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    wanted = {"theme", "print", "role", "limits", "filter", "only", "order", "rows", "heat", "curve-layer"}
    wanted |= {"operator-filter", "operator-trouble", "shift"}
    shown.select_option("#role", label="weight grad")
    shown.evaluate("document.activeElement.blur()")
    met: list[str] = []
    for _ in range(120):
        shown.keyboard.press("Tab")
        met.append(shown.evaluate("document.activeElement.id || document.activeElement.className"))
    assert wanted <= set(met)
    assert met.index("theme") < met.index("role") < met.index("heat") < met.index("operator-filter")
    # By the keyboard alone: sort by a heading.
    shown.locator("#layers-table .sorter").first.focus()
    shown.keyboard.press("Enter")
    shown.keyboard.press("Enter")
    assert names(shown)[0] == "head"
    # A place that has the focus is seen to have it.
    shown.keyboard.press("Tab")
    assert shown.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_layer_that_is_named_leads_to_its_row(opened: Callable[..., Page]) -> None:
    shown = opened(page())
    shown.locator("#finding-1 button.layer").click()
    assert names(shown) == ["encoder.rnn"]
    assert shown.evaluate("document.activeElement.id") == "filter"
    shown.locator("#layers-table .chips a").first.click()
    assert shown.url.endswith("#finding-1")
    shown.locator("#lint-0 button.layer").click()
    assert names(shown) == ["decoder.wo"]


def test_operators_are_filtered_and_sorted(opened: Callable[..., Page]) -> None:
    shown = opened(page(big(20)))
    rows = shown.locator("#operators-table tbody tr")
    assert rows.count() == 100
    shown.fill("#operator-filter", "layers.42")
    assert rows.count() == 1
    assert "model.py:43" in rows.inner_text()
    shown.fill("#operator-filter", "")
    shown.locator("#operators-table .sorter", has_text="Line").click()
    assert "model.py:1" in rows.first.inner_text()
    shown.locator("#operators-table .sorter", has_text="Line").click()
    assert "model.py:100" in rows.first.inner_text()


@pytest.mark.parametrize("width", [400, 320])
def test_a_narrow_window_is_enough(opened: Callable[..., Page], width: int) -> None:
    shown = opened(page(), width=width)
    for chart in ("heat", "curves", "time"):
        drawn(shown, chart)
        box = shown.locator(f"#{chart} .main-svg").first.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    # Nothing sticks out; tables scroll in their own frames.
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    shown.fill("#filter", "head")
    assert names(shown) == ["head"]


def test_colours_follow_the_system_and_the_choice(opened: Callable[..., Page]) -> None:
    shown = opened(page(), scheme="dark")
    drawn(shown, "heat")

    def back() -> str:
        return shown.evaluate("getComputedStyle(document.body).backgroundColor")

    def ink() -> str:
        return shown.evaluate("getComputedStyle(document.querySelector('#heat .xtick text')).fill")

    dark = (back(), ink())
    shown.select_option("#theme", "light")
    light = (back(), ink())
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    shown.emulate_media(color_scheme="light")
    shown.select_option("#theme", "auto")
    assert (back(), ink()) == light


def test_it_can_be_printed(opened: Callable[..., Page]) -> None:
    shown = opened(page(), scheme="dark")
    printed = shown.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    # All charts were drawn for it, without having been looked at.
    assert shown.locator(".chart .main-svg").count() >= 3
    shown.emulate_media(media="print")
    assert shown.locator("nav").is_hidden()
    assert shown.locator(".controls").first.is_hidden()


def test_text_and_its_ground_differ_enough(opened: Callable[..., Page]) -> None:
    """WCAG 2.1 AA: a contrast of 4.5 for text, by day and by night."""
    for scheme in ("light", "dark"):
        shown = opened(page(), scheme=scheme)
        assert shown.evaluate(CONTRAST) == []


@pytest.mark.parametrize("name", [HOSTILE[0], " ".join(HOSTILE[1:])], ids=["script", "others"])
def test_hostile_names_are_names(opened: Callable[..., Page], name: str) -> None:
    shown = opened(named(name))
    title = shown.title()
    for chart in ("proof-chart", "heat", "curves", "time"):
        drawn(shown, chart)
    shown.focus("#heat")
    shown.keyboard.press("ArrowDown")
    shown.select_option("#curve-layer", index=1)
    shown.select_option("#limits", index=1)
    shown.locator("#finding-0 button.layer").click()
    assert len(names(shown)) == 1
    assert shown.title() == title != "owned"
    assert shown.locator("main b b, main img, svg a, .hoverlayer a").count() == 0


def test_two_thousand_layers_are_shown_page_by_page(opened: Callable[..., Page]) -> None:
    shown = opened(page(big()))
    drawn(shown, "heat")
    assert shown.inner_text("#layers-count") == "2,000 layers, 1 to 30 are shown"
    assert shown.locator("#back").is_disabled()
    shown.click("#next")
    assert shown.inner_text("#layers-count") == "2,000 layers, 31 to 60 are shown"
    shown.fill("#filter", "layers.285.")
    assert len(names(shown)) == 5
    shown.fill("#filter", "")
    shown.select_option("#rows", "all")
    assert len(names(shown)) == 2000
    shown.focus("#heat")
    shown.keyboard.press("End")
    assert shown.inner_text("#heat-told") != ""


CONTRAST = """() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((one) => one / 255)
    .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, index) => sum + one * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const color = parts(getComputedStyle(one).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("main *, header *, nav a, footer")) {
    if (element.closest(".chart, option") || element.disabled || !element.checkVisibility()) continue;
    if (![...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim())) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return [...new Set(bad)];
}"""
