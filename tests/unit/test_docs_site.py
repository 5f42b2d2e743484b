"""Builds the site of the documentation. The build must print no warning; an invalid link would cause one.

No page of the site may load a file from another site.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import missing

pytestmark = pytest.mark.xdist_group("site")  # one worker builds the site, once

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("sphinx") is None:
        missing("Sphinx is missing: make .venv/.dev")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    process = subprocess.run(
        [*command, "-d", folder / "doctrees", CHECKOUT / "docs", folder / "html"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return folder / "html"


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(CHECKOUT / "docs").with_suffix(".html") for path in (CHECKOUT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()


def test_the_site_loads_nothing_from_other_sites(site: Path) -> None:
    loads = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^"' >]+)""")
    imports = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')]+)""")
    pages = {page.name: loads.findall(page.read_text("utf-8")) for page in site.rglob("*.html")}
    styles = {style.name: imports.findall(style.read_text("utf-8")) for style in site.rglob("*.css")}
    assert {name: addresses for name, addresses in {**pages, **styles}.items() if addresses} == {}
