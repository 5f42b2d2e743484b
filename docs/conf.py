"""Sphinx's configuration: `make docs` builds the site into dist/docs/, without a network."""

import tomllib
from pathlib import Path

project = "changelog-publisher"
author = "the project's contributors"
version = release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"][
    "version"
]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["compose"]
nitpick_ignore_regex = [
    ("py:.*", r".*")
]  # Signatures name types that have no page here (of Python, Arrow, Spark). Links in pages are still checked.
suppress_warnings = ["misc.highlighting_failure"]  # Some examples of JSON contain …, which is not valid JSON.

myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

default_role = "code"  # docstrings quote names with single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"footer_icons": []}
