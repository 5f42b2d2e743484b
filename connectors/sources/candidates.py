"""Defines the interface by which `changelog init` examines a database, in order to write the first configuration."""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from changelog.connectors.sources import TableInfo, TableName


class Candidate(Protocol):
    """A database that no configuration names yet. `changelog init` uses it to write a configuration."""

    def name(self) -> str:
        """Returns the server's name for the database. Raises ChangelogError if the database cannot be reached."""

    @property
    def kind(self) -> str:
        """The kind of the database, as the value of `[source] kind`."""

    @property
    def home(self) -> str:
        """The schema, such as `public`, to which a table belongs if the configuration names it without a schema."""

    @property
    def usual_tables(self) -> str:
        """The pattern that is written to `[tables] include` if the user chooses no tables."""

    def tables(self, includes: Callable[[TableName], bool]) -> Sequence[TableInfo]:
        """Returns the tables that can be published and that `includes` accepts, sorted by schema and name.

        Their sizes are read too. Raises ChangelogError.
        """

    def grants(self, tables: Collection[TableName]) -> str:
        """Returns a script for an administrator of the database.

        The script creates the roles that set up and run the service for these tables, and grants the rights that these
        roles need. It sets no passwords. Raises ChangelogError.
        """

    def stamps(self, tables: Collection[TableName]) -> str:
        """Returns a script with which the database itself stamps the changes of these tables.

        Raises ChangelogError: USAGE if this kind of database cannot do that.
        """
