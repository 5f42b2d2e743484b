"""What a kind of source may offer beside its façade: to say what the statements of a migration would do to its tables.

The statements are tried in a transaction that is rolled back, on the live database or on an empty copy of it. A source
without it is complete all the same: only `changelog schemas plan` asks for it, and the service never imports it.
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
    """What became of a table, or of something in it; a database has those that it knows."""

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
    """One thing that is not as it was; `name` is the column's or partition's new name, or else its old one.

    `restates` says that rows which nobody writes hold other values afterwards; `has_default` is of an added column.
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
    """What a copy of the live database lacks, and why; `stands_in` says that something else does for it."""

    what: str
    why: str
    stands_in: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement; `line` is that of its first word, counted from 1. `words` are its SQL without texts and comments.

    `code` has the bodies of blocks that it runs at once as well.
    """

    line: int
    text: str
    words: str
    code: str

    def line_at(self, position: int) -> int:
        """The line of the character `position` of the text, which counts from 1, as a server's errors do."""
        return self.line + self.text.count("\n", 0, position - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The statements of a migration, and the `file` that errors name."""

    file: str
    statements: Sequence[Statement]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What the statements did to the tables that were watched.

    `alterations` are of each such table, by the name that it had before. `untouched` are those that are exactly as they
    were. `new_names` are the lines of the statements that gave a name to a table which had not had it before.
    `last_line` is that of the last statement.
    """

    alterations: Mapping[TableName, Sequence[Alteration]]
    untouched: Collection[TableName]
    new_names: Mapping[TableName, int]
    last_line: int


class Rehearsal(Protocol):
    """A migration that is being tried: the database before its first statement, and after `run` behind its last one.

    It belongs to one transaction, which the statements' locks are held by, and of which nothing stays.
    """

    def tables(self) -> Sequence[TableInfo]:
        """The tables that could be published, as they are now. Raises ChangelogError."""

    def shape(self, entity: Entity) -> Struct:
        """The columns and types that the service would publish of an entity's table, which is among those that `tables`
        gave last. Raises ChangelogError where it could not publish them.
        """

    def findings(self, entity: Entity) -> Sequence[Finding]:
        """What `Database.check` would say of this entity alone, of the tables that `tables` gave last.

        Raises ChangelogError.
        """

    def run(self, watched: Sequence[TableName]) -> Effects:
        """Runs the script, once, and says what it did to the tables `watched`, which are there now.

        No statement waits for a lock, or runs, longer than the rehearsal was told. Raises ChangelogError with FILE:LINE
        for the first statement that the server refuses.
        """


class Stage(Protocol):
    """Where migrations are tried; it holds a session, and belongs to one thread."""

    @property
    def name(self) -> str:
        """What people call it, as in `database shop at db:5432`."""

    @property
    def lost(self) -> Sequence[LostDefinition]:
        """What it lacks of the live database; empty for the live one itself."""

    def rehearse(
        self, script: Script, *, lock_timeout_s: float, statement_timeout_s: float
    ) -> AbstractContextManager[Rehearsal]:
        """Begins a rehearsal, which is rolled back at the end of the block."""


class Migrations(Protocol):
    """The planning of migrations for one configured database. It holds no connection."""

    def parse(self, file: str, text: str, *, lasting: bool) -> Script:
        """The statements of a migration. `lasting` says that what a rollback does not undo would last.

        Raises one ChangelogError (USAGE) that lists every statement that cannot be tried, as FILE:LINE.
        """

    def live(self) -> AbstractContextManager[Stage]:
        """The live database, in a session as any other of its role: a rehearsal locks what its statements lock."""

    def copied(self, server: Callable[[], AbstractContextManager[str]]) -> AbstractContextManager[Stage]:
        """A copy of the live database's definitions, without its rows, on an empty server.

        `server` starts one and gives its connection string; it is called once the definitions are read, which takes no
        lock.
        """
