"""Opens a changelog from its folder or from the service's configuration."""

import os
from pathlib import Path

from changelog.connectors import config
from changelog.connectors.api.changelog_reader import ChangelogReader
from changelog.connectors.wiring.sinks import open_folder, open_log, refuse_other_envelope
from changelog.envelope.errors import ChangelogError, Kind

CONFIG = Path("changelog.toml")
"""The configuration that is read by default."""


def open_changelog(source: str | os.PathLike[str] | None = None) -> ChangelogReader:
    """Opens a changelog. The docstring of `changelog.open` explains `source` and the errors."""
    path = CONFIG if source is None else Path(source).expanduser()
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError as error:  # for example, the name is too long, or this process may not enter a folder of the path
        raise ChangelogError(Kind.USAGE, f"{path} cannot be opened ({error.strerror})") from error
    if is_folder:
        return ChangelogReader(open_folder(path))
    if not exists:
        raise ChangelogError(
            Kind.USAGE,
            f"{path}: no such file or folder",
            hint="name the folder of a file log or an archive, or the service's configuration",
        )
    settings = config.load(path, os.environ)
    refuse_other_envelope(settings, "the Python API")
    return ChangelogReader(open_log(settings))
