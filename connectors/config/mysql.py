"""Defines the section `[source]` with kind = "mysql"."""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field

from changelog.connectors.config.fields import Section, Text


def _dsn(text: str) -> str:
    try:
        scheme = urlsplit(text).scheme
    except ValueError:
        scheme = ""
    if scheme not in ("mysql", "mariadb"):
        raise ValueError('should be a URL, as in "mysql://USER@HOST:3306/DATABASE"')
    return text


class MysqlConfig(Section):
    """`[source]`: how to connect to a MySQL or MariaDB server, and limits.

    The service connects as a replica, and `server_id` is its id among the server's replicas. By default, the id is
    computed from `name`. When tables are compared with the changelog, they are copied to a folder in `fence_folder`,
    which is by default the usual folder for temporary files.
    """

    kind: Literal["mysql"]
    dsn: Annotated[Text, AfterValidator(_dsn)] = Field(repr=False)
    server_id: int | None = Field(default=None, ge=1, le=0xFFFF_FFFF)
    fence_folder: Path | None = None
    snapshot_workers: int = Field(default=2, ge=1, le=32)
    snapshot_rows: int = Field(default=20_000, ge=1, le=1_000_000)
    query_timeout_seconds: float = Field(default=30, gt=0, le=3600)
    read_timeout_seconds: float = Field(default=300, gt=0, le=86_400)

    @property
    def home(self) -> str:
        """The database of the tables that are named without a database."""
        return unquote(urlsplit(self.dsn).path.lstrip("/"))
