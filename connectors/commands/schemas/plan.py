"""`changelog schemas plan`: what a migration would do to the changelog, tried and rolled back."""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from connectors import config
from connectors.config import Config
from connectors.schema_files.generated import FOLDER
from connectors.schema_files.history import read
from connectors.schema_files.plan import Contracts, plan
from connectors.schema_files.plan_reports import FORMATS, Tried
from connectors.servers.postgres import temporary_server
from connectors.sources.postgres.migration.recreate import LostDefinition, definitions, recreate
from connectors.sources.postgres.migration.rehearsal import RehearsalError
from connectors.sources.postgres.migration.script import Refusal, Statement, refusal, statements
from connectors.sources.postgres.session.connection import connect, explain, translated
from connectors.sources.postgres.values.text_to_json import SETTINGS
from connectors.terminal import say
from connectors.wiring.sinks import open_log, read_versions
from envelope import errors
from envelope.errors import ChangelogError
from schemas import avro
from schemas.compatibility import PARTITION

Connection = psycopg.Connection[tuple[Any, ...]]

FOUND = 1

LOCK_TIMEOUT_S = 2.0
STATEMENT_TIMEOUT_S = 10.0

# The first prefix of the SQLSTATE that fits says what to do (PostgreSQL, appendix A); the rest is for `explain`.
_REMEDIES: tuple[tuple[str, errors.Kind, str], ...] = (
    ("25001", errors.Kind.USAGE, "leave it out"),
    ("2D000", errors.Kind.USAGE, "leave out what ends the transaction in which the migration is tried"),
    ("25006", errors.Kind.PRECONDITION, "connect to a primary that may be written, or use --embedded"),
    ("42501", errors.Kind.ACCESS, "connect as the role that migrates (CHANGELOG__SOURCE__DSN), or use --embedded"),
    ("55P03", errors.Kind.CONNECTION, "try again, give --lock-timeout more, or use --embedded"),
    ("57014", errors.Kind.CONNECTION, "give --statement-timeout more, or use --embedded"),
)
_QUOTES_VALUES = ("22", "23")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a migration is tried: an open connection, how people call the database, and what it lacks."""

    connection: Connection
    name: str
    lost: Sequence[LostDefinition] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog schemas plan` takes."""
    parser.add_argument("file", type=Path, metavar="FILE.sql", help="the migration, in plain SQL")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="try it on a PostgreSQL of its own, with the live tables' definitions: that locks nothing",
    )
    parser.add_argument(
        "--lock-timeout",
        type=_seconds,
        default=LOCK_TIMEOUT_S,
        metavar="SECONDS",
        help="how long a statement waits for a lock; default: %(default)s",
    )
    parser.add_argument(
        "--statement-timeout",
        type=_seconds,
        default=STATEMENT_TIMEOUT_S,
        metavar="SECONDS",
        help="how long a statement may run; default: %(default)s",
    )
    parser.add_argument("--format", choices=tuple(FORMATS), default="text", help="default: %(default)s")
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", default=argparse.SUPPRESS, help="as --format json"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Prints what would become of each entity; 1 when the service would stop or a reader would break."""
    settings = config.load(arguments.config, os.environ)
    wanted = read_script(arguments.file, embedded=arguments.embedded)
    with (embedded if arguments.embedded else live)(settings) as stage:
        if not arguments.embedded:
            say(
                f"changelog: trying {arguments.file} on the live {stage.name}: until it is rolled back, it holds the "
                "locks that its statements take; --embedded takes none",
                file=sys.stderr,
            )
        try:
            planned = plan(
                stage.connection,
                settings,
                Contracts(
                    files=_files(arguments.config.parent / FOLDER, settings.prefix), versions=_versions(settings)
                ),
                wanted,
                lock_timeout_s=arguments.lock_timeout,
                statement_timeout_s=arguments.statement_timeout,
            )
        except RehearsalError as error:
            raise _failed(arguments.file, error) from error.error
    tried = Tried(file=str(arguments.file), statements=len(wanted), where=stage.name, lost=stage.lost, planned=planned)
    say(FORMATS[arguments.format](tried))
    return FOUND if any(each.troubles for each in planned) else 0


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.001 <= seconds <= 3600:
        raise argparse.ArgumentTypeError("should be between 0.001 and 3600")
    return seconds


def read_script(path: Path, *, embedded: bool) -> list[Statement]:
    """The statements of a file. Raises ChangelogError (USAGE) that lists every one that cannot be tried, by line."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ChangelogError(errors.Kind.USAGE, f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ChangelogError(errors.Kind.USAGE, f"{path}: is not UTF-8 at byte {error.start}") from error
    if "\0" in text:
        raise ChangelogError(errors.Kind.USAGE, f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}: holds a NUL")
    found = list(statements(text))
    refused = [
        why
        for each in found
        if (why := each if isinstance(each, Refusal) else refusal(each, lasting=not embedded)) is not None
    ]
    if refused:
        lines = [f"{path}:{each.line}: {each.what} {each.why}" for each in refused]
        raise ChangelogError(errors.Kind.USAGE, "\n  ".join(lines))
    return [each for each in found if isinstance(each, Statement)]


@contextlib.contextmanager
def live(settings: Config) -> Iterator[Stage]:
    """The live database, in a session as any other of its role."""
    with connect(settings.source.dsn) as connection:
        info = connection.info
        yield Stage(connection=connection, name=f"database {info.dbname} at {info.host}:{info.port}")


@contextlib.contextmanager
def embedded(settings: Config) -> Iterator[Stage]:
    """A PostgreSQL of its own with the definitions of the live database, and none of its rows."""
    with connect(settings.source.dsn) as source, translated("asking for the search path"):
        row = source.execute("SELECT current_schemas(false)").fetchone()
        assert row is not None
        path = sql.SQL(", ").join(map(sql.Identifier, row[0])) if row[0] else sql.Literal("")
    with connect(settings.source.dsn, settings=SETTINGS) as source:
        wanted = definitions(source, settings.publication)
        version = source.info.server_version // 10_000
    with temporary_server(settings={"fsync": "off"}) as server:
        with connect(server.dsn()) as connection:
            lost = recreate(connection, wanted)
        with connect(server.dsn()) as connection:
            connection.execute(sql.SQL("SET search_path = {}").format(path))
            newer = connection.info.server_version // 10_000
            name = f"an embedded PostgreSQL {newer}" + (f" (the live one is {version})" if newer != version else "")
            yield Stage(connection=connection, name=name, lost=lost)


def _versions(settings: Config) -> dict[str, list[tuple[str, avro.Schema]]]:
    """The versions of columns that the changelog holds, by entity; none where it is out of reach, in a pipeline say."""
    found: dict[str, list[tuple[str, avro.Schema]]] = {}
    with contextlib.suppress(ChangelogError):
        for version in read_versions(open_log(settings)):
            schema = avro.state_schema(version.entity, version.columns, version.key, settings.prefix)
            del schema[PARTITION]  # which a version does not say
            found.setdefault(version.entity, []).append((f"version {version.number}", schema))
    return found


def _files(folder: Path, prefix: str) -> dict[str, avro.Schema]:
    """The schemas of entities that stand in files; what is no such file, `changelog schemas check` tells."""
    found = {}
    for contract in read([folder]) if folder.is_dir() else ():
        place = avro.entity_of(contract.schema)
        with contextlib.suppress(ValueError):
            if place is not None and place[0] == prefix and avro.state_columns(contract.schema):
                found[place[1]] = contract.schema
    return found


def _failed(path: Path, failed: RehearsalError) -> ChangelogError:
    """What the server says of a statement, as FILE:LINE: message."""
    diag, state = failed.error.diag, failed.error.sqlstate
    line = failed.statement.line_at(int(diag.statement_position or 1))
    where = f"{path}:{line}"
    if state is not None and state.startswith(_QUOTES_VALUES):  # what they say may hold a row's values
        of = (("constraint", diag.constraint_name), ("column", diag.column_name), ("table", diag.table_name))
        names = [f"{what} {name}" for what, name in of if name]
        text = " of ".join([f"error {state}, {type(failed.error).__name__}", *names])
        return ChangelogError(errors.Kind.PRECONDITION, f"{where}: {text}")
    found = explain(state, diag.message_primary or str(failed.error), where)
    for prefix, kind, hint in _REMEDIES:
        if state is not None and state.startswith(prefix):
            return ChangelogError(kind, found.message, hint=hint)
    return found
