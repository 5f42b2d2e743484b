"""Writes and reads reports. The files of a report are `report.json` and `report.html`, in the run's folder
`FOLDER/RUN_ID`. `FOLDER/latest` is a link to the folder of the newest run.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from changelog.connectors.permissions import DATA_FILE, DATA_FOLDER, make_file, make_folder
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.drift.report import shape
from changelog.spark_jobs.drift.report.history import RUNS_MAX
from changelog.spark_jobs.drift.report.page import page

LATEST = "latest"
JSON_NAME = "report.json"
PAGE_NAME = "report.html"


def write(folder: Path, report: Mapping[str, Any]) -> Path:
    """Writes each file of the report atomically into the run's folder, and makes `latest` a link to this folder.
    Returns the path of the page.

    Raises OSError if a file cannot be written. Raises ChangelogError (MALFORMED) if `report` does not fit the format in
    `shape`; that would be a bug of the caller.
    """
    content = msgspec.json.encode(report)
    checked = shape.decode(content, JSON_NAME)
    run = folder / checked.run.id
    make_folder(run, DATA_FOLDER)
    _replace(run / JSON_NAME, msgspec.json.format(content, indent=1) + b"\n")
    _replace(run / PAGE_NAME, page(checked).encode())
    _link(folder, checked.run.id)
    return run / PAGE_NAME


def read_earlier(folder: Path) -> list[dict[str, Any]]:
    """Returns the newest reports in `folder`, at most 30. The oldest of them comes first. Returns an empty list if the
    folder does not exist.

    Raises ChangelogError: MALFORMED if a file is not a report of this format, STORAGE if a file cannot be read.
    """
    paths = (path for path in folder.glob(f"[!.]*/{JSON_NAME}") if not path.parent.is_symlink())
    newest = sorted(paths, key=lambda path: path.parent.name)[-RUNS_MAX:]
    return [_read(path) for path in newest]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        hint = "give the user that runs this job the right to read the file"
        raise ChangelogError(Kind.STORAGE, message, hint=hint) from error
    shape.decode(content, str(path))
    report: dict[str, Any] = msgspec.json.decode(content)
    return report


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    make_file(temporary, DATA_FILE)
    with temporary.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)


def _link(folder: Path, run: str) -> None:
    """Makes `latest` a link to the run's folder. This is atomic: a new link is renamed over the old one."""
    new_link = folder / f".{LATEST}.{os.getpid()}"
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(run, target_is_directory=True)
    try:
        new_link.replace(folder / LATEST)
    except OSError:
        new_link.unlink()
        raise
