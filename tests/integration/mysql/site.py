"""Configures and runs a service that publishes a MySQL or MariaDB database, and reads its changelog."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pymysql.cursors import DictCursor

from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.site import Site

HEAD = """
name = {name}
source = {{ kind = "mysql", dsn = {dsn}, snapshot_rows = {rows} }}
sink = {{ path = {path}, commit_seconds = 0.05 }}
service = {{ listen = "127.0.0.1:0" }}
"""


class MysqlSite(Site):
    """A fresh database of a server. The folder `folder` has the configuration and the changelog of one service."""

    def __init__(self, server: MysqlServer, database: str, folder: Path, *, snapshot_rows: int = 20) -> None:
        self.server, self.database = server, database
        self.dsn = self.url("root")
        self.name = database
        self.folder = folder
        self.config = folder / "changelog.toml"
        self.log = folder / "log"
        self.snapshot_rows = snapshot_rows

    def url(self, user: str, password: str = "") -> str:
        """Returns the connection string that an account uses for the database."""
        account = f"{user}:{password}" if password else user
        return f"mysql://{account}@{self.server.host}:{self.server.port}/{self.database}"

    def configure(self, rest: str, *, dsn: str | None = None, path: str = "log") -> None:
        """Writes the configuration, with the text `rest` at its end."""
        values = {"name": self.name, "dsn": dsn or self.dsn, "path": path, "rows": self.snapshot_rows}
        head = HEAD.format(**{key: json.dumps(value) for key, value in values.items()})
        self.config.write_text(head + rest, "utf-8")

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs the statements in one session, in autocommit mode. Returns the rows of the last statement."""
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """Changes a setting of the server while the body of the `with` statement runs."""
        with self.server.connect(self.database) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT @@global.{name}")
            [(before,)] = cursor.fetchall()
            cursor.execute(f"SET GLOBAL {name} = {value}")
            try:
                yield
            finally:
                cursor.execute(f"SET GLOBAL {name} = {before}")

    def rows(self, table: str) -> dict[str, Any]:
        """Returns the rows of a table by the column `id`. The table may have only numbers, texts and nulls."""
        with self.server.connect(self.database) as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            return {str(row["id"]): row for row in cursor.fetchall()}

    def is_exact(self, table: str) -> bool:
        """Returns whether the changelog has exactly the table's rows."""
        return self.state(table) == self.rows(table)
