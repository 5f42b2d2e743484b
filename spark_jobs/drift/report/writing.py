"""Reports as files: `FOLDER/RUN_ID/report.json` and `report.html`, and `FOLDER/latest`, a link to the newest."""

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
    """Writes the report beside its keys, each file atomically, and points `latest` to it; returns the page's path.

    Raises ChangelogError (MALFORMED) for a report that is not of the format, which is a bug, and OSError.
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
    """The newest reports in `folder`, oldest first, 30 at most; none if the folder does not exist.

    Raises ChangelogError (MALFORMED), with the path, for a file that is not a report of this format.
    """
    paths = (path for path in folder.glob(f"[!.]*/{JSON_NAME}") if not path.parent.is_symlink())
    newest = sorted(paths, key=lambda path: path.parent.name)[-RUNS_MAX:]
    return [_read(path) for path in newest]


def _read(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path}: cannot be read ({error.strerror})"
        raise ChangelogError(Kind.STORAGE, message, hint="give this user the right to read it") from error
    shape.decode(content, str(path))
    report: dict[str, Any] = msgspec.json.decode(content)
    return report


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    make_file(beside, DATA_FILE)
    with beside.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    beside.replace(path)


def _link(folder: Path, run: str) -> None:
    """Points `latest` to the run atomically: a new link replaces the old one."""
    beside = folder / f".{LATEST}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(run, target_is_directory=True)
    try:
        beside.replace(folder / LATEST)
    except OSError:
        beside.unlink()
        raise
