"""Implements `changelog.connectors.sources.candidates.Candidate` for PostgreSQL."""

from collections.abc import Callable, Collection, Sequence

from changelog.connectors.sources import TableName
from changelog.connectors.sources.postgres.admin import stamps
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.ddl import SCRIPT
from changelog.connectors.sources.postgres.admin.grants import grants, read_owned
from changelog.connectors.sources.postgres.session.connection import connect


class PostgresCandidate:
    """The database that the connection string `dsn` names."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    kind = "postgres"
    home = "public"
    usual_tables = "*"

    def name(self) -> str:
        """See `Candidate.name`."""
        with connect(self._dsn) as connection:
            return connection.info.dbname

    def tables(self, includes: Callable[[TableName], bool]) -> Sequence[Table]:
        """See `Candidate.tables`."""
        with connect(self._dsn) as connection:
            return [table for table in read_tables(connection, sized=includes) if includes((table.schema, table.name))]

    @staticmethod
    def event_trigger_script() -> str:
        """Returns the script with which a superuser can create the optional event trigger.

        With the trigger, the database's log also contains the statements that alter tables and publications.
        """
        return SCRIPT

    def grants(self, tables: Collection[TableName]) -> str:
        """See `Candidate.grants`."""
        with connect(self._dsn) as connection:
            published = [table for table in read_tables(connection) if (table.schema, table.name) in tables]
            return grants(read_owned(connection, published), database=connection.info.dbname)

    def stamps(self, tables: Collection[TableName]) -> str:
        """See `Candidate.stamps`."""
        with connect(self._dsn) as connection:
            published = [table for table in read_tables(connection) if (table.schema, table.name) in tables]
            return stamps.script(stamps.read(connection, published))
