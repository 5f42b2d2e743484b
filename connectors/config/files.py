"""Defines the section `[sink]` with kind = "files"."""

from pathlib import Path
from typing import Literal

from changelog.connectors.config.fields import CommitBytes, CommitRows, CommitSeconds, Section


class FilesConfig(Section):
    """`[sink] kind = "files"`: a log of Parquet files in the folder `path`.

    A commit is stored after `commit_seconds`, or earlier if it has `commit_bytes` or `commit_rows`. While the service
    catches up, a commit may gather rows for longer than `commit_seconds` (`Cadence`).
    """

    kind: Literal["files"] = "files"
    path: Path
    commit_seconds: CommitSeconds = 1.0
    commit_bytes: CommitBytes = 64 << 20
    commit_rows: CommitRows = 100_000
