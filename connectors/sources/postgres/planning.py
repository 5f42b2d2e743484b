"""Implements `changelog.connectors.sources.migrations.Migrations` for PostgreSQL: runs a migration, and rolls it
back.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from psycopg import sql

from changelog.connectors.findings import Finding
from changelog.connectors.libpq import QUOTES_VALUES
from changelog.connectors.sources import TableName
from changelog.connectors.sources.migrations import Effects, LostDefinition, Script, Statement
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, findings
from changelog.connectors.sources.postgres.migration.alterations import alterations
from changelog.connectors.sources.postgres.migration.recreate import definitions, recreate
from changelog.connectors.sources.postgres.migration.rehearsal import (
    RehearsalError,
    RehearsalScope,
    RehearsedStep,
    TableState,
    read_states,
    reading_catalogue,
    rehearse,
    shared,
)
from changelog.connectors.sources.postgres.migration.script import RefusedStatement, refusal, statements
from changelog.connectors.sources.postgres.session.connection import Connection, connect, explain, translated
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.snapshot.table_reads import bind_table
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.types import Struct

# Each entry is a prefix of SQLSTATEs (PostgreSQL, appendix A), with the kind and the hint of our error for them. The
# first prefix that matches decides. `explain` handles all other states.
_REMEDIES: tuple[tuple[str, Kind, str], ...] = (
    ("25001", Kind.USAGE, "leave the statement out"),
    ("2D000", Kind.USAGE, "leave out whatever ends the transaction of the rehearsal"),
    ("25006", Kind.PRECONDITION, "connect to a primary that accepts writes, or use --embedded"),
    ("42501", Kind.ACCESS, "connect as the role that runs your migrations (CHANGELOG__SOURCE__DSN), or use --embedded"),
    ("55P03", Kind.CONNECTION, "try again, raise --lock-timeout, or use --embedded"),
    ("57014", Kind.CONNECTION, "raise --statement-timeout, or use --embedded"),
)


class PostgresMigrations:
    """Rehearses migrations of the database that `settings` describes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def parse(self, file: str, text: str, *, lasting: bool) -> Script:
        """See `Migrations.parse`."""
        items = list(statements(text))
        refusals = [
            refused_statement
            for item in items
            if (refused_statement := item if isinstance(item, RefusedStatement) else refusal(item, lasting=lasting))
            is not None
        ]
        if refusals:
            lines = [
                f"{file}:{refused_statement.line}: {refused_statement.what} {refused_statement.why}"
                for refused_statement in refusals
            ]
            raise ChangelogError(Kind.USAGE, "\n  ".join(lines))
        return Script(file=file, statements=[item for item in items if isinstance(item, Statement)])

    @contextmanager
    def live(self) -> Iterator["PostgresStage"]:
        """See `Migrations.live`."""
        with connect(self._settings.dsn) as connection:
            info = connection.info
            name = f"database {info.dbname} at {info.host}:{info.port}"
            yield PostgresStage(connection=connection, settings=self._settings, name=name)

    @contextmanager
    def copied(self, server: Callable[[], AbstractContextManager[str]]) -> Iterator["PostgresStage"]:
        """See `Migrations.copied`."""
        with connect(self._settings.dsn) as source, translated("asking for the search path"):
            [(schemas,)] = source.execute("SELECT current_schemas(false)").fetchall()
            path = sql.SQL(", ").join(map(sql.Identifier, schemas)) if schemas else sql.Literal("")
        with connect(self._settings.dsn, settings=SETTINGS) as source:
            copied = definitions(source, self._settings.publication)
            version = source.info.server_version // 10_000
        with server() as dsn:
            with connect(dsn) as connection:
                lost = recreate(connection, copied)
            with connect(dsn) as connection:
                connection.execute(sql.SQL("SET search_path = {}").format(path))
                newer = connection.info.server_version // 10_000
                name = f"an embedded PostgreSQL {newer}" + (f" (the live one is {version})" if newer != version else "")
                yield PostgresStage(connection=connection, settings=self._settings, name=name, lost=lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresStage:
    """Implements `changelog.connectors.sources.migrations.Stage`."""

    connection: Connection
    settings: Settings
    name: str
    lost: Sequence[LostDefinition] = ()

    @contextmanager
    def rehearse(
        self, script: Script, *, lock_timeout_s: float, statement_timeout_s: float
    ) -> Iterator["PostgresRehearsal"]:
        """See `Stage.rehearse`. An error of the server in the block becomes a ChangelogError, too."""
        with translated("rehearsing"), self.connection.transaction(force_rollback=True):
            self.connection.execute(f"SET LOCAL lock_timeout = {round(lock_timeout_s * 1000)}".encode())
            yield PostgresRehearsal(
                self.connection,
                self.settings,
                script,
                lock_timeout_s=lock_timeout_s,
                statement_timeout_s=statement_timeout_s,
            )


class PostgresRehearsal:
    """Implements `changelog.connectors.sources.migrations.Rehearsal`. `connection` has an open transaction."""

    def __init__(
        self,
        connection: Connection,
        settings: Settings,
        script: Script,
        *,
        lock_timeout_s: float,
        statement_timeout_s: float,
    ) -> None:
        self._connection, self._settings, self._script = connection, settings, script
        self._lock_timeout_s, self._statement_timeout_s = lock_timeout_s, statement_timeout_s
        self._tables: Mapping[TableName, Table] = {}

    def tables(self) -> Sequence[Table]:
        """See `Rehearsal.tables`."""
        with reading_catalogue(self._connection):
            tables = read_tables(self._connection)
        self._tables = {(table.schema, table.name): table for table in tables}
        return tables

    def shape(self, entity: Entity) -> Struct:
        """See `Rehearsal.shape`."""
        with reading_catalogue(self._connection):
            table = self._tables[entity.table]
            return bind_table(self._connection, entity, table, self._settings.hmac_key).shape

    def findings(self, entity: Entity) -> Sequence[Finding]:
        """See `Rehearsal.findings`."""
        settings = self._settings
        required = Requirements(
            slot=settings.slot, publication=settings.publication, failover=settings.failover, entities=[entity]
        )
        with reading_catalogue(self._connection):
            return findings(self._connection, required, list(self._tables.values()))

    def run(self, watched: Sequence[TableName]) -> Effects:
        """See `Rehearsal.run`."""
        before = {name: table.oid for name, table in self._tables.items()}
        scope = RehearsalScope(
            tables=[before[name] for name in watched],
            known=[oid for table in self._tables.values() for oid in _oids(table)],
            publication=self._settings.publication,
        )
        states, shared_before = read_states(self._connection, scope), shared(self._connection, scope.publication)
        steps = self._steps(scope)
        same_shared = bool(steps) and shared(self._connection, scope.publication) == shared_before
        known = set(scope.known).__contains__
        return Effects(
            alterations={name: alterations(states[before[name]], steps, known) for name in watched},
            untouched=_untouched(states, steps) if same_shared else set(),
            new_names=_new_names(before, steps),
            last_line=steps[-1].statement.line if steps else 1,
        )

    def _steps(self, scope: RehearsalScope) -> list[RehearsedStep]:
        try:
            return list(
                rehearse(
                    self._connection,
                    self._script.statements,
                    scope,
                    lock_timeout_s=self._lock_timeout_s,
                    statement_timeout_s=self._statement_timeout_s,
                )
            )
        except RehearsalError as error:
            raise _refused(self._script.file, error) from error.error


def _oids(table: Table) -> list[int]:
    return [table.oid, *(leaf.oid for leaf in table.leaves)]


def _untouched(before: Mapping[int, TableState], steps: Sequence[RehearsedStep]) -> set[TableName]:
    after = steps[-1].states
    return {(state.schema, state.name) for oid, state in before.items() if after.get(oid) == state}


def _new_names(before: Mapping[TableName, int], steps: Sequence[RehearsedStep]) -> dict[TableName, int]:
    """Returns the new names of tables, each with the line of the first statement that gave a table this name.

    A name is new for a table if the table did not have it before the script, even if another table had it.
    """
    lines: dict[TableName, int] = {}
    for step in steps:
        for oid, state in step.states.items():
            name = (state.schema, state.name)
            if before.get(name) != oid:
                lines.setdefault(name, step.statement.line)
    return lines


def _refused(file: str, failed: RehearsalError) -> ChangelogError:
    """Returns our error for a statement that the server refused; its message begins with FILE:LINE."""
    diag, state = failed.error.diag, failed.error.sqlstate
    where = f"{file}:{failed.statement.line_at(int(diag.statement_position or 1))}"
    if state is not None and state.startswith(QUOTES_VALUES):  # the server's message may contain a row's values
        objects = (("constraint", diag.constraint_name), ("column", diag.column_name), ("table", diag.table_name))
        names = [f"{what} {name}" for what, name in objects if name]
        text = " of ".join([f"error {state}, {type(failed.error).__name__}", *names])
        return ChangelogError(Kind.PRECONDITION, f"{where}: {text}")
    explained = explain(state, diag.message_primary or str(failed.error), where)
    for prefix, kind, hint in _REMEDIES:
        if state is not None and state.startswith(prefix):
            return ChangelogError(kind, explained.message, hint=hint)
    return explained
