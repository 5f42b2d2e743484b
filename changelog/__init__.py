"""Makes the packages of the changelog publisher importable under one name, and opens changelogs for Python programs.

Every program of the project imports this module. To keep this fast, the code behind `changelog.open` and the other
names of `__all__` is imported only when it is used. In a checkout, the packages in this folder are links to the folders
of the same names at the top of the repository.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from changelog.connectors.api.changelog_reader import ChangelogReader
    from changelog.envelope.errors import ChangelogError
    from changelog.envelope.model import Envelope, Record
    from changelog.envelope.position import Position

__all__ = ["ChangelogError", "ChangelogReader", "Envelope", "Position", "Record", "open"]

_MODULES: Final = {
    "ChangelogError": "changelog.envelope.errors",
    "ChangelogReader": "changelog.connectors.api.changelog_reader",
    "Envelope": "changelog.envelope.model",
    "Position": "changelog.envelope.position",
    "Record": "changelog.envelope.model",
}


def open(source: "str | os.PathLike[str] | None" = None) -> "ChangelogReader":  # noqa: A001  # as in gzip.open
    """Opens a changelog for reading.

    `source` is the folder of a file log or of an archive, or the file with the service's configuration, usually
    `changelog.toml`. A changelog on Kafka can only be opened by its configuration. Without `source`, opens
    `changelog.toml` in the current folder. Raises ChangelogError: USAGE if there is no such file or folder, or if the
    configuration has a problem; PRECONDITION if the folder has no changelog.
    """
    from changelog.connectors.api.opening import open_changelog  # noqa: PLC0415

    return open_changelog(source)


def __getattr__(name: str) -> object:
    """Imports a name of `__all__` when it is used for the first time."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
