"""Tests the pages of the console in Chromium, as people use them: with and without scripts, on wide and narrow
screens, in light and dark colours, with a keyboard and with a screen reader.
"""

import os
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, FloatRect, Page, expect

from changelog.connectors.console.addresses import row_address
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.model import Op
from tests.unit.chromium import CONTRAST, OUTSIDE, SCRIPTS, Scheme, chromium, watched_page
from tests.unit.console.running import running
from tests.unit.console.story import HARD_KEY, LAST, MARKUP, add, hotel_changes, settings, story, versions, write
from tests.unit.records import record

PICTURES = Path(__file__).parents[3] / "docs" / "images"
TOKEN = "a token of a person"

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture(scope="module")
def browser(starts_servers: None) -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def hotel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the changelog of a hotel, and a drift report."""
    folder = tmp_path_factory.mktemp("hotel")
    write(folder / "log", [*hotel_changes(), *versions()])
    (folder / "drift" / "latest").mkdir(parents=True)
    (folder / "drift" / "latest" / "report.json").write_bytes((SCRIPTS / "format-1.json").read_bytes())
    return folder


@pytest.fixture(scope="module")
def address(hotel: Path) -> Iterator[str]:
    """The address of the hotel's console."""
    with running(settings(hotel)) as address:
        yield address


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Iterator[str]:
    """The address of a console whose rows have hostile values, such as scripts."""
    with running(settings(folder)) as address:
        yield address


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Opens a page in the browser. At the end, checks that it sent requests to one server only, and logged nothing."""
    with watched_page(browser) as (page, requested):
        yield page
    assert len({url.split("/")[2] for url in requested}) == 1


SHOWN = [("home", "/"), ("row", "/e/order/42"), ("live", "/tail"), ("drift", "/drift"), ("columns", "/schemas/order")]
OTHERS = [("search", "/e/order"), ("who", "/who?service=web-booking"), ("gone", "/e/order/43")]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
@pytest.mark.parametrize(("name", "path"), [*SHOWN, *OTHERS])
def test_a_page_fits_and_can_be_read(
    page: Page, address: str, name: str, path: str, scheme: Scheme, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    page.goto(address + path)
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    contrast = page.evaluate(CONTRAST)
    assert contrast["low"] == []
    assert contrast["seen"] > 5
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OUTSIDE) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor").startswith("rgb(1")
    assert dark == (scheme == "dark")
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(each => Number(each.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unnamed = "[...document.querySelectorAll('input:not([type=hidden]), select')].filter(each => !each.labels.length"
    assert page.evaluate(f"{unnamed} && !each.ariaLabel).length") == 0
    if (name, path) in SHOWN[:3]:
        picture = PICTURES / f"console-{name}-{scheme}-{width}.png"
        if os.environ.get("UPDATE_PICTURES") == "1":
            height = min(page.evaluate("document.documentElement.scrollHeight"), 1100)
            clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
            page.screenshot(path=picture, full_page=True, clip=clip)
        assert picture.is_file(), "take the picture with UPDATE_PICTURES=1"


@pytest.mark.parametrize("path", [row_address("seat", HARD_KEY), "/e/guest/8", "/e/guest/9", "/", "/e/seat"])
def test_hostile_rows_are_shown_safely(page: Page, hostile: str, path: str) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    page.goto(hostile + path)
    expect(page.get_by_role("heading", level=1)).to_be_in_viewport()
    assert page.locator("main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(OUTSIDE) == []
    if path.startswith("/e/seat/"):
        expect(page.locator(".chip").first).to_have_text(MARKUP)


def test_the_slider_moves_through_time_with_the_keyboard(page: Page, address: str) -> None:
    page.goto(f"{address}/e/order/42")
    status = page.locator(".blame").get_by_role("row", name="status")
    expect(status).to_contain_text('"PAID"')
    slider = page.get_by_role("slider")
    slider.press("Home")
    page.wait_for_url("**/e/order/42?at=*")
    expect(page.get_by_role("slider")).to_have_value("1")
    expect(status).to_contain_text('"NEW"')
    page.get_by_role("link", name="next change", exact=True).click()
    expect(status).to_contain_text("payment-api")
    page.go_back()
    expect(page.get_by_role("slider")).to_have_value("1")


def test_the_setter_of_a_value_is_shown_on_hover_and_on_focus(page: Page, address: str) -> None:
    page.goto(f"{address}/e/order/42")
    street = page.locator(".blame").get_by_role("row", name="address.street")
    tip = street.get_by_role("tooltip")
    expect(tip).to_be_hidden()
    street.hover()
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("crm")
    expect(tip).to_contain_text('before: "Rue 1"')
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    street.get_by_role("link").focus()
    expect(tip).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.locator(":target")).to_contain_text("crm")


def test_with_the_keyboard_people_skip_to_the_content_and_see_the_focus(page: Page, address: str) -> None:
    page.goto(f"{address}/e/order/42")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport(ratio=1)
    page.keyboard.press("Enter")
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert page.evaluate("document.activeElement.closest('main') !== null")


def test_a_search_with_the_keyboard_leads_to_a_row(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("searchbox", name="Key, or its beginning").fill("42")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("order 42")


def test_everything_but_live_changes_works_without_scripts(browser: Browser, address: str) -> None:
    with closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(f"{address}/drift")
        page.get_by_role("searchbox", name="Entity and key").fill("order 42")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("order 42")
        page.get_by_role("slider").press("Home")
        page.get_by_role("form", name="The moment").get_by_role("button", name="Show").click()
        expect(page.get_by_role("slider")).to_have_value("1")
        page.get_by_label("or at a time (UTC)").fill("2026-11-21T03:10:05")
        page.locator("form.date").get_by_role("button").click()
        expect(page.get_by_role("slider")).to_have_value("2")
        page.goto(f"{address}/tail")
        expect(page.locator("#changes > li")).to_have_count(12)
        expect(page.get_by_role("button", name="Pause")).to_be_hidden()


def test_new_changes_appear_by_themselves(browser: Browser, tmp_path: Path) -> None:
    write(tmp_path / "log", story())
    with running(settings(tmp_path)) as address, closing(FileSink(tmp_path / "log")) as sink:
        sink.recover()
        page, of_crm = browser.new_page(), browser.new_page()
        page.goto(f"{address}/tail")
        of_crm.goto(f"{address}/tail?service=crm&entity=order")
        for watching in (page, of_crm):
            expect(watching.get_by_role("status")).to_have_text("Watching: new changes appear here.")
        first = page.locator("#changes > li").first
        add(sink, [record(Op.CREATE, f'{{"id":50,"note":"{MARKUP}"}}', commit=LAST + 1, key="50")])
        expect(first).to_contain_text("order 50")
        expect(first).to_contain_text(MARKUP)
        assert page.locator("main script").count() == 0
        page.get_by_role("button", name="Pause").click()
        add(sink, [record(Op.CREATE, '{"id":51}', commit=LAST + 2, key="51", service="crm")])
        expect(of_crm.locator("#changes > li")).to_have_count(3)
        expect(of_crm.locator("#changes > li").first).to_contain_text("order 51")
        expect(first).to_contain_text("order 50")
        page.get_by_role("button", name="Continue").click()
        expect(first).to_contain_text("order 51")
        for watching in (page, of_crm):
            watching.close()


def test_a_person_logs_in_once(browser: Browser, hotel: Path) -> None:
    with running(settings(hotel, console=f'token = "{TOKEN}"')) as address:
        page = browser.new_page()
        page.goto(f"{address}/e/order/42")
        assert page.evaluate(CONTRAST)["low"] == []
        page.get_by_label("Token").fill("a wrong token")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("This is not the token.")
        page.get_by_label("Token").fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("order 42")
        assert page.url == f"{address}/e/order/42"
        assert page.evaluate("document.cookie") == ""
        page.goto(f"{address}/tail")
        expect(page.get_by_role("status")).to_have_text("Watching: new changes appear here.")
        page.close()
