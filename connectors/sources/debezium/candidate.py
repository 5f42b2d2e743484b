"""Lets `changelog init` examine Debezium's topics, in order to write the first configuration (`Candidate`)."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from changelog.connectors.sources import TableName
from changelog.connectors.sources.debezium.guesses import Guesses
from changelog.connectors.sources.debezium.inputs import ConfiguredInput
from changelog.connectors.sources.debezium.tables import Sampled, SampledTable
from changelog.envelope.errors import ChangelogError, Kind


class DebeziumCandidate:
    """The tables whose events are in `origin`. `guesses` translates the events, and guesses the types of columns if the
    events carry no schemas. `where` is what error texts call the topics.
    """

    kind = "debezium"
    usual_tables = "*"

    def __init__(self, origin: ConfiguredInput, guesses: Guesses, where: str) -> None:
        self._origin, self._guesses, self._where = origin, guesses, where

    @cached_property
    def sampled(self) -> Sampled:
        """The tables in the last messages of the topics. Raises ChangelogError if no table can be read."""
        sampled = self._origin.sampled(self._guesses.translate, {})
        if not sampled.tables and sampled.unreadable:
            raise next(iter(sampled.unreadable.values()))
        if not sampled.tables:
            hint = "name other topics, or let Debezium publish an event"
            raise ChangelogError(Kind.USAGE, f"{self._where} have no event of a table", hint=hint)
        return sampled

    @property
    def connector(self) -> str:
        """The Debezium connector of most tables."""
        [(connector, _)] = Counter(table.connector for table in self.sampled.tables).most_common(1)
        return connector

    @property
    def home(self) -> str:
        """See `Candidate.home`: the schema of most tables."""
        [(schema, _)] = Counter(table.schema for table in self.sampled.tables).most_common(1)
        return schema

    def name(self) -> str:
        """See `Candidate.name`: the database of most tables, or the connector if the events name no database."""
        [(database, _)] = Counter(table.database for table in self.sampled.tables).most_common(1)
        return database or self.connector

    def tables(self, includes: Callable[[TableName], bool]) -> Sequence[SampledTable]:
        """See `Candidate.tables`."""
        return [table for table in self.sampled.tables if includes((table.schema, table.name))]

    def types(self, table: TableName) -> Mapping[str, str]:
        """Returns the guessed types of a table's columns; none if its events carry schemas."""
        return self._guesses.types(table)

    def grants(self, tables: Collection[TableName]) -> str:
        """See `Candidate.grants`: refused, because rights on topics are not SQL."""
        raise ChangelogError(
            Kind.USAGE,
            f"--grants prints SQL, but {len(tables)} tables are read from topics",
            hint="docs/how-to/from-debezium.md says which rights on topics are needed",
        )

    def stamps(self, tables: Collection[TableName]) -> str:
        """See `Candidate.stamps`: refused, because the database is not known here."""
        raise ChangelogError(
            Kind.USAGE,
            f"--stamps prints SQL for PostgreSQL, but {len(tables)} tables are read from topics",
            hint="give --dsn, the database of these topics, instead of --debezium",
        )
