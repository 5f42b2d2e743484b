"""Creates or alters PostgreSQL's publication before Debezium starts, in a session of its own.

Debezium would create or alter the publication, too, but in the session in which it then reads the log. In such a
session, PostgreSQL decodes the log with the present columns of the tables. So rows that were written before a column
was altered get wrong values, or the server crashes (we have seen this with 18.6). Therefore the service creates or
alters the publication as Debezium would, and starts Debezium with `publication.autocreate.mode = disabled`.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-publication-autocreate-mode
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from psycopg import sql
from psycopg.rows import class_row

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.patience import PatientConnection
from changelog.connectors.sources import TableName
from changelog.connectors.sources.debezium.inputs.engine.postgres_session import session
from changelog.connectors.sources.debezium.inputs.engine.settings import MODE, TABLES
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

PUBLISHED = "published"
"""The member of `identity` that has the tables of the publication at the last start."""

NAME = "publication.name"
_SIGNALS, _VIA_ROOT = "signal.data.collection", "publish.via.partition.root"
_MADE = frozenset({"filtered", "all_tables"})
"""The modes in which Debezium would create and alter the publication itself."""

# A partition can be published under its own name, so partitions count as tables, too.
_TABLES = r"""
SELECT n.nspname AS schema, c.relname AS name, c.relkind = 'p' AS partitioned,
    pg_get_userbyid(c.relowner) AS owner, pg_has_role(c.relowner, 'USAGE') AS owned
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname
"""
_PUBLICATION = """
SELECT puballtables, pubviaroot, pg_get_userbyid(pubowner), pg_has_role(pubowner, 'USAGE')
FROM pg_publication WHERE pubname = %s
"""
_LISTED = """
SELECT n.nspname, c.relname FROM pg_publication_rel AS r
JOIN pg_publication AS p ON p.oid = r.prpubid JOIN pg_class AS c ON c.oid = r.prrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE p.pubname = %s
"""
_SENT = "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s"
_ROLE = """
SELECT current_user::text, current_database()::text, has_database_privilege(current_database(), 'CREATE'),
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
"""


_log = structlog.get_logger("debezium")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A table that can be published. `owned` says whether our role has the rights of its owner."""

    schema: str
    name: str
    partitioned: bool
    owner: str
    owned: bool

    @property
    def text(self) -> str:
        return ".".join(self.key)

    @property
    def key(self) -> TableName:
        return self.schema, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """An existing publication. `listed` are the tables that it names, and `sent` all tables whose changes it sends."""

    all_tables: bool
    via_root: bool
    owner: str
    owned: bool
    listed: frozenset[TableName]
    sent: frozenset[TableName]


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """What the database has: the tables that Debezium reads, the publication, and what our role may do.

    `absent` has the names and patterns in the configuration that match no table.
    """

    tables: Sequence[_Table]
    absent: Sequence[str]
    present: _Present | None
    role: str
    database: str
    may_create: bool
    superuser: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The publication that Debezium reads with these properties.

    `shared` says whether the configuration names the publication. If so, it may have tables that other programs need.
    """

    properties: Mapping[str, str] = field(repr=False)
    shared: bool

    @property
    def name(self) -> str:
        """The name of the publication."""
        return self.properties[NAME]

    @property
    def mode(self) -> str:
        """The configured mode, in lower case."""
        return self.properties[MODE].lower()

    @property
    def is_ours(self) -> bool:
        """Whether the service makes the publication. It does so if the mode would let Debezium make it."""
        return self.mode in _MADE

    def made(self, old_tables: Sequence[str] | None, *, continues: bool) -> Sequence[str] | None:
        """Creates or alters the publication as the mode says. Returns the tables that Debezium reads; None if the mode
        is `all_tables`.

        `old_tables` is what `made` returned at the last start. `continues` says whether Debezium has an offset from
        which it continues to read the log.

        Call it only if `is_ours`. Raises ChangelogError: GAP if `continues` is set and the publication or one of its
        `old_tables` is missing; ACCESS or PRECONDITION if the server refuses; and the errors of connecting.
        """
        with session(self.properties, f"setting up publication {self.name}") as connection:
            state = self._read(connection)
            self._refuse(state, old_tables, continues=continues)
            for what, statement in self._steps(state):
                connection.execute(statement)
                _log.info("changed the publication", publication=self.name, because=f"it {what}")
        return None if self.mode == "all_tables" else [table.text for table in state.tables]

    def findings(self, old_tables: Sequence[str] | None, *, continues: bool) -> Iterator[Finding]:
        """Yields findings: whether the publication has the tables that Debezium reads, and if not, whether `made` could
        add them.

        The arguments are those of `made`.
        """
        try:
            with session(self.properties, f"looking for publication {self.name}") as connection:
                state = self._read(connection)
                steps = [(what, statement.as_string(connection)) for what, statement in self._steps(state)]
            if self.is_ours:
                self._refuse(state, old_tables, continues=continues)
        except ChangelogError as error:
            hint = error.hint or "see docs/how-to/another-database.md"
            yield (fail if self.is_ours else warn)("publication", error.message, hint)
            return
        if state.absent and self.is_ours:
            message = f"database {state.database} has no table {', '.join(state.absent)} yet"
            yield warn("publication", message, "start the service again once the table exists, so that it is published")
        yield self._finding(state, steps)

    def exists(self) -> bool:
        """Returns whether the publication exists."""
        with session(self.properties, f"looking for publication {self.name}") as connection:
            return connection.execute(_PUBLICATION, [self.name]).fetchone() is not None

    def drop(self) -> None:
        """Drops the publication."""
        with session(self.properties, f"dropping publication {self.name}") as connection:
            connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(self.name)))

    def _refuse(self, state: _State, old_tables: Sequence[str] | None, *, continues: bool) -> None:
        """Raises ChangelogError if the log may lack changes, or if there is nothing to publish."""
        away = sorted({table.text for table in _lacking(state)} & set(old_tables or ()))
        lost = None
        if continues and state.present is None:
            lost = f"there is no publication {self.name} any more"
        elif continues and away:
            lost = f"publication {self.name} no longer has {', '.join(f'the table {table}' for table in away)}"
        if lost:
            raise ChangelogError(Kind.GAP, f"{lost}, so the log may lack changes", hint=OVER_GAP)
        if not state.tables:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"database {state.database} has no table {', '.join(state.absent)}, so there is nothing to publish",
                hint="create the table, or correct `table` in [entities.X]",
            )

    def _finding(self, state: _State, steps: Sequence[tuple[str, str]]) -> Finding:
        if not steps:
            return ok("publication", f"publication {self.name} has the tables that Debezium reads")
        what = f"publication {self.name} {' and '.join(what for what, _ in steps)}"
        script = "; ".join(statement for _, statement in steps)
        if not self.is_ours:
            return fail("publication", f"{what}, and {MODE} is {self.mode}", f"run: {script}")
        missing = "; ".join(self._missing_rights(state))
        if missing:
            message = f"{what}, and role {state.role} may not change that: {missing}"
            return fail("publication", message, f"run, as a role that may do so: {script}")
        return ok("publication", f"{what}; at its start, the service runs: {script}")

    def _missing_rights(self, state: _State) -> Iterator[str]:
        if state.superuser:
            return
        if state.present is not None and not state.present.owned:
            yield f"the publication belongs to role {state.present.owner}"
        if state.present is None and not state.may_create:
            yield f"the role lacks CREATE on database {state.database}"
        if self.mode == "all_tables":
            yield "only a superuser may publish all tables"
            return
        for table in _lacking(state):
            if not table.owned:
                yield f"table {table.text} belongs to role {table.owner}"

    def _steps(self, state: _State) -> Iterator[tuple[str, sql.Composed]]:
        """Yields each problem of the publication, with the SQL that corrects it.

        A problem is half a sentence. In messages, it follows the name of the publication.
        """
        name, present = sql.Identifier(self.name), state.present
        via_root = self.properties.get(_VIA_ROOT, "false").lower() == "true"
        own = [table.key for table in state.tables]
        if present is None:
            option = sql.SQL(" WITH (publish_via_partition_root = true)" if via_root else "")
            scope = sql.SQL("ALL TABLES") if self.mode == "all_tables" else sql.SQL("TABLE ") + _names(own)
            yield "does not exist yet", sql.SQL("CREATE PUBLICATION {} FOR {}{}").format(name, scope, option)
            return
        if via_root and not present.via_root and any(table.partitioned for table in state.tables):
            setting = sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)").format(name)
            yield "publishes partitions under their own names", setting
        lacking = _lacking(state)
        if lacking:
            text = ", ".join(table.text for table in lacking)
            yield (
                f"lacks {text}",
                sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, _names(table.key for table in lacking)),
            )
        surplus = sorted(present.listed.difference(own))
        if surplus and not self.shared and self.mode == "filtered":
            text = ", ".join(map(".".join, surplus))
            yield f"still has {text}", sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(name, _names(surplus))

    def _read(self, connection: PatientConnection) -> _State:
        with connection.cursor(row_factory=class_row(_Table)) as cursor:
            tables = cursor.execute(_TABLES).fetchall()
        row = connection.execute(_PUBLICATION, [self.name]).fetchone()
        present = None
        if row is not None:
            listed, others = (
                frozenset((schema, name) for schema, name in connection.execute(query, [self.name]))
                for query in (_LISTED, _SENT)
            )
            names = ("all_tables", "via_root", "owner", "owned")
            present = _Present(**dict(zip(names, row, strict=True)), listed=listed, sent=listed | others)
        [(role, database, may_create, superuser)] = connection.execute(_ROLE).fetchall()
        patterns = self._patterns()
        return _State(
            tables=[table for table in tables if any(pattern.fullmatch(table.text) for pattern in patterns.values())],
            absent=[
                text for text, pattern in patterns.items() if not any(pattern.fullmatch(table.text) for table in tables)
            ],
            present=present,
            role=role,
            database=database,
            may_create=may_create,
            superuser=superuser,
        )

    def _patterns(self) -> Mapping[str, re.Pattern[str]]:
        """Returns a compiled pattern for each name or pattern of tables in the properties, by its text without
        backslashes. The patterns ignore case, as Debezium does.
        """
        texts = [*re.split(r"(?<!\\),", self.properties.get(TABLES, "")), *self._signals()]
        try:
            return {
                re.sub(r"\\(.)", r"\1", text): re.compile(text, re.IGNORECASE) for text in map(str.strip, texts) if text
            }
        except re.error as error:
            raise ChangelogError(
                Kind.USAGE,
                f"{TABLES}: {error.pattern!s} is not a pattern that the service understands: {error.msg}",
                hint=f'create publication {self.name} yourself, and set "{MODE}" = "disabled"',
            ) from error

    def _signals(self) -> Iterator[str]:
        for text in self.properties.get(_SIGNALS, "").split(","):
            yield re.escape(text.strip())


def publication_of(connector: str, properties: Mapping[str, str], *, shared: bool) -> Publication | None:
    """Returns the publication that a connector reads; None if it reads none."""
    if connector != "postgresql" or properties.get("plugin.name") != "pgoutput" or MODE not in properties:
        return None
    publication = Publication(properties=properties, shared=shared)
    return None if publication.mode == "no_tables" else publication


def _lacking(state: _State) -> list[_Table]:
    """Returns the tables that Debezium reads and the publication does not send."""
    sent = frozenset[TableName]() if state.present is None else state.present.sent
    return [table for table in state.tables if table.key not in sent]


def _names(tables: Iterable[TableName]) -> sql.Composed:
    """Returns the tables as SQL. Because of ONLY, tables that inherit from these are not published."""
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*table)) for table in tables)
