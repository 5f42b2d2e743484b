"""Which version of the package this is, and how its optional parts are installed: from the wheel, not from an index."""

import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGE = "changelog-publisher"


def own_version() -> str:
    """This package's version; a checkout that is not installed has it in its pyproject.toml."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
        return str(project["version"])


def installation(extra: str) -> str:
    """The command that installs the wheel of this version with `extra`, as a hint."""
    return f'pip install "changelog_publisher-{own_version()}-py3-none-any.whl[{extra}]" (`make wheel` builds it)'
