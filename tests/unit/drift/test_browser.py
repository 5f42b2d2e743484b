"""Tests the page of a drift report in Chromium, as people use it.

People read the page in light and dark colours, on wide and narrow screens and on paper. They use it with a keyboard or
a screen reader.
"""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect

from changelog.spark_jobs.drift.report import write
from tests.patience import PATIENCE_S
from tests.unit.chromium import CONTRAST, OUTSIDE, Scheme, chromium, watched_page
from tests.unit.drift.examples import HARD, NIGHTS

PICTURES = Path(__file__).parents[3] / "docs" / "images"
TOP_PX = 1500
"""Pictures of a page end at this height. Only the picture of "drift" in light colours shows the whole page."""


HEADLINES = {"clean": "No drift", "drift": "Drift", "severe": "Severe drift", "not-caught-up": "Not caught up"}

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture(scope="module")
def browser(starts_servers: None) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drift")
    return {name: write(folder / name, make()) for name, make in NIGHTS.items()}


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Opens a page in the browser. At the end, checks that it requested only the report's file and logged nothing."""
    with watched_page(browser) as (page, requested):
        yield page
        address = page.url.partition("#")[0]
    assert {url for url in requested if not url.startswith("data:")} == {address}


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("night", NIGHTS)
def test_a_page_fits_and_can_be_read(
    page: Page, reports: dict[str, Path], night: str, scheme: Scheme, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(reports[night].as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text(HEADLINES[night])
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    contrast = page.evaluate(CONTRAST)
    assert contrast["low"] == []
    assert contrast["seen"] > 40
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor").startswith("rgb(1")
    assert dark == (scheme == "dark")
    picture = PICTURES / f"drift-{night}-{scheme}-{width}.png"
    if os.environ.get("UPDATE_PICTURES") == "1":
        is_complete = (night, scheme) == ("drift", "light")
        height = page.evaluate("document.documentElement.scrollHeight")
        clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height if is_complete else min(height, TOP_PX)}
        page.screenshot(path=picture, full_page=True, clip=clip)
    assert picture.is_file(), "take the picture with UPDATE_PICTURES=1"


def test_both_values_of_a_key_are_side_by_side(page: Page, reports: dict[str, Path]) -> None:
    page.goto(reports["drift"].as_uri())
    row = page.get_by_role("article").filter(has_text="184467").get_by_role("row").filter(has_text="amount")
    left, right = row.get_by_role("cell").all()
    expect(left).to_have_text('"411.00"')
    expect(right).to_have_text('"548.00"')
    left_box, right_box = left.bounding_box(), right.bounding_box()
    assert left_box is not None
    assert right_box is not None
    assert left_box["y"] == right_box["y"]
    assert left_box["x"] + left_box["width"] <= right_box["x"]


def test_null_and_an_empty_text_look_different(page: Page, reports: dict[str, Path]) -> None:
    page.goto(reports["drift"].as_uri())
    row = page.get_by_role("article").filter(has_text="184467").get_by_role("row").filter(has_text="note")
    null, empty = row.locator(".value").all()
    expect(null).to_have_text("null")
    expect(empty).to_have_text('""')
    expect(null).to_have_css("font-style", "italic")
    expect(empty).to_have_css("font-style", "normal")


@pytest.mark.parametrize(
    ("night", "commands"),
    [
        ("clean", []),
        ("drift", ["changelog republish order --report 20261121T031000Z-3f2a/report.json"]),
        ("severe", ["changelog rebuild order", "changelog rebuild guest"]),
        ("not-caught-up", []),
    ],
)
def test_commands_are_shown_and_a_click_selects_a_whole_command(
    page: Page, reports: dict[str, Path], night: str, commands: list[str]
) -> None:
    page.goto(reports[night].as_uri())
    blocks = page.locator("pre code")
    assert blocks.all_text_contents() == commands
    for number, command in enumerate(commands):
        blocks.nth(number).click()
        assert page.evaluate("String(getSelection())") == command


def test_texts_that_look_like_scripts_stay_text(page: Page, reports: dict[str, Path]) -> None:
    page.goto(reports["drift"].as_uri())
    expect(page.get_by_text(f"by {HARD} v2")).to_be_visible()
    expect(page.locator("script")).to_have_count(0)


def test_the_keyboard_reaches_scrolling_parts_and_every_link(page: Page, reports: dict[str, Path]) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(reports["drift"].as_uri())
    reached = []
    for _ in range(page.locator("a, [tabindex]").count()):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        reached.append(page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.className"))
    assert reached == ["scroll", "#entity-order", "", "keys.jsonl", "report.json", "keys.jsonl"]
    page.locator(".scroll").focus()
    page.keyboard.press("ArrowRight")
    deadline = time.monotonic() + PATIENCE_S
    # Playwright's own way to wait evaluates a string, which the page's Content-Security-Policy forbids.
    while page.evaluate("document.querySelector('.scroll').scrollLeft") == 0:
        assert time.monotonic() < deadline, "the arrow key does not scroll the table"
        page.wait_for_timeout(50)


def test_a_screen_reader_finds_titles_tables_and_drawings(page: Page, reports: dict[str, Path]) -> None:
    page.goto(reports["drift"].as_uri())
    expect(page.get_by_role("table", name="Rows on each side, and keys that drifted")).to_be_visible()
    expect(page.get_by_role("region", name="Entities")).to_be_visible()
    expect(page.get_by_role("region", name="order drift")).to_be_visible()
    label = "Drifted keys of order, 21 runs, 1 Nov to 21 Nov: 6 in the last run, 41 at most"
    expect(page.get_by_role("img", name=label)).to_have_count(2)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("night", NIGHTS)
def test_on_paper_everything_is_dark_on_white_and_nothing_is_cut_off(
    page: Page, reports: dict[str, Path], night: str
) -> None:
    page.set_viewport_size({"width": 680, "height": 960})  # A4 within margins of 15 mm
    page.emulate_media(media="print", color_scheme="dark")
    page.goto(reports[night].as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRAST)["low"] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
