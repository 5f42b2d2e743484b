"""Tells `changelog init` what it must know about a MySQL or MariaDB server to write the first configuration.

See `changelog.connectors.sources.candidates.Candidate`.
"""

from collections.abc import Callable, Collection, Sequence
from glob import escape

from changelog.connectors.sources import TableName
from changelog.connectors.sources.mysql.admin.catalog import Table, read_tables
from changelog.connectors.sources.mysql.admin.grants import grants
from changelog.connectors.sources.mysql.session.address import Address
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.envelope.errors import ChangelogError, Kind


class MysqlCandidate:
    """The server and the database that the connection string `dsn` names."""

    def __init__(self, dsn: str) -> None:
        self._address = Address.parse(dsn)

    kind = "mysql"

    @property
    def home(self) -> str:
        """See `Candidate.home`: the database in the connection string."""
        return self._address.database

    @property
    def usual_tables(self) -> str:
        """See `Candidate.usual_tables`: only tables of this database, because other databases may have other owners."""
        return f"{escape(self.home)}.*"

    def name(self) -> str:
        """See `Candidate.name`."""
        with Connection(self._address) as connection:
            [(name,)] = connection.query("SELECT DATABASE()")
        return str(name)

    def tables(self, includes: Callable[[TableName], bool]) -> Sequence[Table]:
        """See `Candidate.tables`."""
        with Connection(self._address) as connection:
            tables = read_tables(connection.query, sized=includes)
        return [table for table in tables if includes((table.schema, table.name))]

    def grants(self, tables: Collection[TableName]) -> str:
        """See `Candidate.grants`."""
        with Connection(self._address) as connection:
            return grants(tables, connection.flavour, database=self._address.database)

    def stamps(self, tables: Collection[TableName]) -> str:
        """See `Candidate.stamps`: refused, because MySQL and MariaDB have no statement-level triggers."""
        raise ChangelogError(
            Kind.USAGE,
            f"--stamps is for PostgreSQL, but the {len(tables)} tables are in MySQL or MariaDB",
            hint="in MySQL and MariaDB, an application writes its stamp in an SQL comment, or inserts it into the "
            "table `changelog_stamp`: docs/how-to/stamps.md",
        )
