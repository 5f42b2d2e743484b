"""Records the events of real servers for unit tests. Each line of a recording is an event in hexadecimal.

`python -m tests.unit.mysql.record_binlog NAME` writes the recording NAME (see `RECORDINGS`) anew: it runs a server, and
executes the statements of this recording in an empty database. Without a name, it writes all recordings anew.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from changelog.connectors.servers.mysql import Flavour, MysqlServer
from tests.servers.binlog import logged
from tests.servers.binlog_statements import MARIADB_11_8, MYSQL_9, statements
from tests.servers.mysql import mysql_server

SENT: Mapping[Flavour, Sequence[str]] = {
    "mariadb": statements("mariadb", (11, 4)),
    "mysql": statements("mysql", (8, 0)),
}
"""For each flavour, the statements that make a server (MariaDB 11.4, MySQL 8.0) write every kind of event that it can
write (see `binlog_statements`).
"""

RECORDINGS: Mapping[str, tuple[str, Sequence[str]]] = {
    "mariadb": ("mariadb", SENT["mariadb"]),
    "mariadb_11_8": ("mariadb-11.8", MARIADB_11_8),
    "mysql": ("mysql", SENT["mysql"]),
    "mysql_9": ("mysql-9", MYSQL_9),
}
"""Maps the name of a recording to the version of its server and to the statements that the server ran."""

_FOLDER = Path(__file__).parent


def captured_events(recording: str) -> list[bytes]:
    """Returns the events of a recording."""
    return [bytes.fromhex(line) for line in _file(recording).read_text("ascii").splitlines()]


def _file(recording: str) -> Path:
    return _FOLDER / f"binlog_{recording}.txt"


def _record(server: MysqlServer, recording: str, statements: Sequence[str]) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    events = logged(server, "shop", lambda session: [session.execute(statement) for statement in statements])
    _file(recording).write_text("".join(f"{event.hex()}\n" for event in events), "ascii")


def _main(names: Sequence[str]) -> None:
    for name in names or RECORDINGS:
        version, sent = RECORDINGS[name]
        with mysql_server(version) as server:
            _record(server, name, sent)


if __name__ == "__main__":
    _main(sys.argv[1:])
