"""Reads the state of the server's log: where it ends, which transactions it has contained, and which are purged."""

from dataclasses import dataclass

from changelog.connectors.sources.mysql.admin.catalog import Query
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.values.positions.coordinates import (
    coordinate,
    file_number,
    file_offset,
    parse_file_name,
)
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids, parse_gtids
from changelog.envelope.errors import ChangelogError, Kind

_RENAMED_STATUS = (8, 2, 0)
"""The first version of MySQL with SHOW BINARY LOG STATUS; 8.4 no longer has SHOW MASTER STATUS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of the log: the last file, the offset of the end in this file, and all transactions before the end.

    The offset is in bytes.
    """

    file: str
    offset: int
    gtids: Gtids

    @property
    def coordinate(self) -> int:
        """The end as a coordinate; see `values.positions.coordinates`."""
        _, number = parse_file_name(self.file)
        return coordinate(number, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePosition:
    """A place in the log: the name of a file, and an offset in this file, in bytes."""

    file: str
    offset: int

    @property
    def coordinate(self) -> int:
        """The place as a coordinate; see `values.positions.coordinates`."""
        _, number = parse_file_name(self.file)
        return coordinate(number, self.offset)

    def moved(self, place: int) -> "FilePosition":
        """Returns the place with the coordinate `place`, in the same log."""
        base, _ = parse_file_name(self.file)
        return FilePosition(file=f"{base}.{file_number(place):06}", offset=file_offset(place))

    def gtids(self, query: Query) -> Gtids:
        """Returns the transactions before this place; none if the log has no such place. Raises ChangelogError."""
        [(text,)] = query("SELECT BINLOG_GTID_POS(%s, %s)", (self.file, self.offset))
        return parse_gtids(Flavour.MARIADB, text or "")


def snapshot_place(query: Query) -> FilePosition:
    """Returns the place in MariaDB's log where this session's snapshot was taken.

    The snapshot shows the transactions that end before this place. But it may lack XA transactions that were being
    committed at that moment; see `snapshot.xa_commits`.
    """
    status: dict[str, str] = dict(query("SHOW STATUS WHERE Variable_name LIKE 'binlog_snapshot_%'", ()))
    return FilePosition(file=status["Binlog_snapshot_file"], offset=int(status["Binlog_snapshot_position"]))


def server_identity(query: Query, version: ServerVersion) -> str:
    """Returns a text that identifies the server.

    For MySQL, this is `server_uuid`, which the server makes for its data folder. For MariaDB, it is the setting
    `server_id`, which must differ between the servers of a group, and `server_uid`, which the server computes.
    """
    if version.flavour is Flavour.MYSQL:
        [(identity,)] = query("SELECT @@server_uuid", ())
        return str(identity)
    rows = query("SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'server_uid')", ())
    return "-".join(value for _, value in sorted(rows))


def xa_commits(query: Query) -> int:
    """Returns how many XA COMMITs were begun since the server started."""
    [(_, count)] = query("SHOW GLOBAL STATUS LIKE 'Com_xa_commit'", ())
    return int(count)


def log_end(query: Query, version: ServerVersion) -> LogEnd:
    """Returns the end of the log. Raises ChangelogError (PRECONDITION) if the server writes no binary log."""
    file, offset, *rest = _status(query, version)
    if version.flavour is Flavour.MYSQL:
        return LogEnd(file=file, offset=offset, gtids=parse_gtids(version.flavour, rest[2]))
    return LogEnd(file=file, offset=offset, gtids=FilePosition(file=file, offset=offset).gtids(query))


def end_coordinate(query: Query, version: ServerVersion) -> int:
    """Returns the coordinate of the end of the log."""
    return end_place(query, version).coordinate


def end_place(query: Query, version: ServerVersion) -> FilePosition:
    """Returns the place at which the log ends."""
    file, offset, *_ = _status(query, version)
    return FilePosition(file=file, offset=offset)


def _status(query: Query, version: ServerVersion) -> tuple[str, int, str, str, str]:
    renamed = version.flavour is Flavour.MYSQL and version.numbers >= _RENAMED_STATUS
    rows = query("SHOW BINARY LOG STATUS" if renamed else "SHOW MASTER STATUS", ())
    if not rows:
        raise ChangelogError(
            Kind.PRECONDITION,
            "the server writes no binary log",
            hint="set log_bin in the server's configuration file, and restart the server",
        )
    file, offset, do_databases, ignored_databases, *gtids = rows[0]
    return file, int(offset), do_databases, ignored_databases, gtids[0] if gtids else ""


def purged(query: Query, version: ServerVersion) -> Gtids:
    """Returns the transactions that are no longer in any file of the log.

    MariaDB does not list purged transactions. But it says which transactions come before its oldest file, and exactly
    these are purged. Raises ChangelogError.
    """
    if version.flavour is Flavour.MYSQL:
        [(text,)] = query("SELECT @@global.gtid_purged", ())
        return parse_gtids(version.flavour, text)
    file = query("SHOW BINARY LOGS", ())[0][0]
    return FilePosition(file=file, offset=4).gtids(query)


def bytes_between(query: Query, first: int, end: int) -> int:
    """Returns how many bytes of the log lie between two coordinates, counting only files that the server still has."""
    total = 0
    for file, nbytes, *_ in query("SHOW BINARY LOGS", ()):
        _, number = parse_file_name(file)
        begin = max(first, coordinate(number, 0))
        total += max(min(end, coordinate(number, int(nbytes))) - begin, 0)
    return total


def lower_case_table_names(query: Query) -> int:
    """Returns how the server treats names of tables: 0 if it tells upper and lower case apart, else 1 or 2."""
    [(value,)] = query("SELECT @@lower_case_table_names", ())
    return int(value)
