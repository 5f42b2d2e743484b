"""Gives the version of this package, and the command that installs the package and its optional parts.

No package index has this package, so it is installed from the file of its wheel.
"""

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from changelog.envelope.errors import ChangelogError, Kind

PACKAGE = "changelog-publisher"


def own_version() -> str:
    """Returns the version of this package: the installed one; if none is installed, the one in pyproject.toml."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        project = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
        return str(project["version"])


def installation(extra: str | None = None) -> str:
    """Returns a hint: the command that installs the wheel of this version, with the optional part `extra` if one is
    given.
    """
    extras = "" if extra is None else f"[{extra}]"
    return f'pip install "changelog_publisher-{own_version()}-py3-none-any.whl{extras}" (`make wheel` builds it)'


@contextmanager
def extra_needed(extra: str, message: str) -> Iterator[None]:
    """Raises ChangelogError (USAGE) if the body of the `with` imports a package that is not installed.

    The hint says how to install the optional part `extra`, to which such packages belong. `message` is the text of the
    error, in which `{}` stands for the name of the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "changelog":
            raise
        raise ChangelogError(Kind.USAGE, message.format(missing), hint=installation(extra)) from error
