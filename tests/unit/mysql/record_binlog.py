"""Records the events that the unit tests decode. A line of a file is one event in hexadecimal.

`python -m tests.unit.mysql.record_binlog` runs `binlog_statements` in an empty database of MariaDB and of MySQL 8.0,
and writes their files anew. With the folder of the programs of MySQL 9 as its argument, it writes the file of MySQL 9,
which make does not fetch.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from changelog.connectors.servers.mysql import Server, temporary_server
from tests.servers.binlog import logged
from tests.servers.binlog_statements import MYSQL_9, statements
from tests.servers.mysql import FLAVOURS, SETTINGS, mysql_server

RECORDINGS = (*FLAVOURS, "mysql_9")

_FOLDER = Path(__file__).parent


def captured_events(recording: str) -> list[bytes]:
    """Returns the recorded events of a server."""
    return [bytes.fromhex(line) for line in _file(recording).read_text("ascii").splitlines()]


def _file(recording: str) -> Path:
    return _FOLDER / f"binlog_{recording}.txt"


def _record(server: Server, recording: str, statements: Sequence[str]) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
    events = logged(server, "shop", lambda session: [session.execute(statement) for statement in statements])
    _file(recording).write_text("".join(f"{event.hex()}\n" for event in events), "ascii")


def _main(arguments: Sequence[str]) -> None:
    if arguments:
        settings = {**SETTINGS, "secure_file_priv": ""}
        with temporary_server("mysql", Path(arguments[0]), settings=settings) as mysql_9:
            _record(mysql_9, "mysql_9", MYSQL_9)
        return
    for flavour in FLAVOURS:
        with mysql_server(flavour) as server:
            _record(server, flavour, statements(flavour))


if __name__ == "__main__":
    _main(sys.argv[1:])
