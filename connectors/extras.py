"""The optional parts of the package, and how one is installed: from the wheel, since it is on no package index."""

from importlib.metadata import version

PACKAGE = "changelog-publisher"


def installation(extra: str) -> str:
    """The command that installs the wheel of this version with `extra`, as a hint."""
    return f'pip install "changelog_publisher-{version(PACKAGE)}-py3-none-any.whl[{extra}]" (`make wheel` builds it)'
