"""Defines an optional interface of a source: it reports what a migration's statements would do to published tables.

In a *rehearsal*, the source runs the statements in a transaction that is rolled back, on the live database or on an
empty copy of it. Only `changelog schemas plan` uses rehearsals. The service never imports this interface, so a source
need not implement it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from changelog.connectors.findings import Finding
from changelog.connectors.sources import TableInfo, TableName
from changelog.envelope.entity import Entity
from changelog.schemas.types import Struct


class AlterationKind(StrEnum):
    """What happened to a table, or to something in it. Each kind of database uses only the members that apply to it."""

    GONE = "table dropped"
    MOVED = "table renamed"
    REPLACED = "table replaced"
    ADDED = "column added"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "type"
    NULLABLE = "null"
    DEFAULT = "default"
    KEYS = "unique indexes"
    IDENTITY = "replica identity"
    PUBLISHED = "publication"
    PARTITION_CAME = "partition added"
    PARTITION_WENT = "partition removed"
    REWRITTEN = "table rewritten"
    TRUNCATED = "table truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """One change of a table, made by the statement that begins on line `line`.

    `name` is the name of the changed column or partition: its new name, or its old name if it is gone. `before` and
    `after` describe what changed. `restates` says that rows look different after the change (in values, or in the names
    of columns) although the database's log shows no change of these rows. `has_default` says that an added column has
    a default.
    """

    kind: AlterationKind
    line: int
    name: str = ""
    before: str = ""
    after: str = ""
    restates: bool = False
    has_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostDefinition:
    """A definition that a copy of the live database lacks, and why.

    `stands_in` says that the copy has a substitute for it.
    """

    what: str
    why: str
    stands_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One SQL statement, with the `line` of its first word in the file, counted from 1.

    `words` is its SQL without quoted text and comments. `code` is the same, but keeps the text in dollar quotes, such
    as the body of a DO statement.
    """

    line: int
    text: str
    words: str
    code: str

    def line_at(self, position: int) -> int:
        """Returns the line, in the file, of the character at `position` in `text`.

        Positions count from 1, as in the server's errors.
        """
        return self.line + self.text.count("\n", 0, position - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The statements of a migration. `file` is what error texts call the file with these statements."""

    file: str
    statements: Sequence[Statement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the statements did to the watched tables.

    `alterations` holds the changes of each watched table, by the name that the table had before the first statement.
    `untouched` holds the names of the watched tables that are exactly as they were. `new_names` maps each name that the
    statements gave to a table, watched or not, to the line of the first statement that gave the name. `last_line` is
    the line of the last statement.
    """

    alterations: Mapping[TableName, Sequence[Alteration]]
    untouched: Collection[TableName]
    new_names: Mapping[TableName, int]
    last_line: int


class Rehearsal(Protocol):
    """A trial run of a migration, in one transaction that is rolled back.

    Before `run`, the methods see the database as it is before the first statement; after `run`, as it is after the last
    one. The transaction holds the statements' locks until it is rolled back.
    """

    def tables(self) -> Sequence[TableInfo]:
        """Returns the tables that could be published, as they are now. Raises ChangelogError."""

    def shape(self, entity: Entity) -> Struct:
        """Returns the columns and types that the service would publish for an entity.

        The entity's table must be among those that the last call of `tables` returned. Raises ChangelogError if the
        service could not publish it.
        """

    def findings(self, entity: Entity) -> Sequence[Finding]:
        """Returns the findings of `Database.check` for this entity alone, based on the last result of `tables`.

        Raises ChangelogError.
        """

    def run(self, watched: Sequence[TableName]) -> Effects:
        """Runs the script and returns what it did to the `watched` tables, which must exist before the call.

        A script can be run only once.

        The timeouts that `Stage.rehearse` was given apply to each statement. Raises ChangelogError for the first
        statement that the server refuses; the error text names the statement's FILE:LINE.
        """


class Stage(Protocol):
    """A database on which migrations are rehearsed, and one session with it. Only one thread may use a stage."""

    @property
    def name(self) -> str:
        """The name that people read, such as `database shop at db:5432`."""

    @property
    def lost(self) -> Sequence[LostDefinition]:
        """The definitions of the live database that this database lacks; empty for the live database itself."""

    def rehearse(
        self, script: Script, *, lock_timeout_s: float, statement_timeout_s: float
    ) -> AbstractContextManager[Rehearsal]:
        """Begins a rehearsal of `script`. The rehearsal is rolled back at the end of the `with` block."""


class Migrations(Protocol):
    """Rehearses migrations of one configured database. It holds no connection."""

    def parse(self, file: str, text: str, *, lasting: bool) -> Script:
        """Parses the migration `text` into statements. `file` is what error texts call the migration.

        `lasting` says that the database is used after the rehearsal. Then statements with effects that a rollback does
        not undo are refused, too. Raises one ChangelogError (USAGE) that lists, as FILE:LINE, every statement that
        cannot be rehearsed.
        """

    def live(self) -> AbstractContextManager[Stage]:
        """Yields the live database, in an ordinary session: a rehearsal really locks the tables that it changes."""

    def copied(self, server: Callable[[], AbstractContextManager[str]]) -> AbstractContextManager[Stage]:
        """Yields a copy of the live database's definitions, without its rows, on an empty server.

        `server` starts that server and yields its connection string. It is called after the definitions have been read.
        Reading them locks nothing.
        """
