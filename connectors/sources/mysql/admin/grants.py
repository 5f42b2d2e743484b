"""Writes the SQL that creates the service's account, with the least rights that it needs."""

from collections.abc import Collection, Iterator

from changelog.connectors.sources.mysql.admin.catalog import TableName
from changelog.connectors.sources.mysql.admin.signals import message_tables
from changelog.connectors.sources.mysql.decode.transactions import SIGNAL_TABLE, STAMP_TABLE
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.session.names import quoted

RUN = "'changelog_run'@'%'"
APPLICATIONS = "'YOUR_APPLICATION'@'%'"

_RIGHTS = {Flavour.MYSQL: "REPLICATION SLAVE, REPLICATION CLIENT", Flavour.MARIADB: "REPLICATION SLAVE, BINLOG MONITOR"}


def grants(tables: Collection[TableName], flavour: Flavour, *, database: str) -> str:
    """Returns the SQL script for an administrator of the server; the script sets no passwords."""
    return "\n".join([*_script(tables, flavour, database), ""])


def _script(tables: Collection[TableName], flavour: Flavour, database: str) -> Iterator[str]:
    yield "-- Run this as an administrator. It sets no password: use ALTER USER … IDENTIFIED BY …"
    yield ""
    yield "-- The account for `changelog run`. It reads the binary log and the tables, and writes nothing."
    yield f"CREATE USER {RUN};"
    yield f"GRANT {_RIGHTS[flavour]} ON *.* TO {RUN};"
    for schema, name in sorted(tables):
        yield f"GRANT SELECT ON {quoted(schema, name)} TO {RUN};"
    yield ""
    yield "-- Optional. Operators send signals (`changelog republish` and others) through one table, and applications"
    yield "-- write stamps (who makes the changes of a transaction) through another one."
    yield f"USE {quoted(database)};"
    yield message_tables().rstrip()
    yield f"GRANT INSERT ON {quoted(database)}.{SIGNAL_TABLE} TO {RUN};"
    yield f"-- GRANT INSERT, DELETE ON {quoted(database)}.{STAMP_TABLE} TO {APPLICATIONS};"
    yield ""
    if flavour is Flavour.MYSQL:
        yield "-- Necessary only on MySQL before 8.0.30, if applications use XA transactions. The service lists the"
        yield "-- prepared ones before it reads a table."
        yield f"-- GRANT XA_RECOVER_ADMIN ON *.* TO {RUN};"
        yield ""
    yield "-- Optional. With RELOAD, `detect_drift` stops all writers for the moment in which it takes a snapshot. On"
    yield "-- MariaDB, it needs this right only while an XA transaction is prepared."
    yield f"-- GRANT RELOAD ON *.* TO {RUN};"
