"""`changelog schemas plan`: runs a migration, rolls it back, and says what the migration would do to the changelog."""

import argparse
import contextlib
import os
import sys
from pathlib import Path

from changelog.connectors import config
from changelog.connectors.commands.schemas.output import add_format
from changelog.connectors.config import Config
from changelog.connectors.schema_files.generated import FOLDER
from changelog.connectors.schema_files.history import read
from changelog.connectors.schema_files.migrations.plan import plan
from changelog.connectors.schema_files.migrations.planned import Contracts
from changelog.connectors.schema_files.migrations.reports import FORMATS, Tried
from changelog.connectors.terminal import say
from changelog.connectors.wiring.migrations import empty_server, migrations
from changelog.connectors.wiring.sinks import open_log, read_versions
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas import avro
from changelog.schemas.compatibility import PARTITION

FOUND = 1

LOCK_TIMEOUT_S = 2.0
STATEMENT_TIMEOUT_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog schemas plan`."""
    parser.add_argument("file", type=Path, metavar="FILE.sql", help="the migration, in plain SQL")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="run it on a temporary PostgreSQL with copies of the live tables' definitions; no live table is locked",
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
    add_format(parser, FORMATS)


def execute(arguments: argparse.Namespace) -> int:
    """Prints what would happen to each entity. Returns 1 if the service would stop, or a reader would break."""
    settings = config.load(arguments.config, os.environ)
    source = migrations(settings)
    script = source.parse(str(arguments.file), _read(arguments.file), lasting=not arguments.embedded)
    with source.copied(empty_server) if arguments.embedded else source.live() as stage:
        if not arguments.embedded:
            say(
                f"changelog: trying {arguments.file} on the live {stage.name}: until it is rolled back, the migration "
                "holds the locks that its statements take; with --embedded, it takes no locks there",
                file=sys.stderr,
            )
        contracts = Contracts(
            files=_files(arguments.config.parent / FOLDER, settings.prefix), versions=_versions(settings)
        )
        with stage.rehearse(
            script, lock_timeout_s=arguments.lock_timeout, statement_timeout_s=arguments.statement_timeout
        ) as rehearsal:
            verdicts = plan(rehearsal, settings, contracts)
    trial = Tried(
        file=str(arguments.file),
        statements=len(script.statements),
        where=stage.name,
        lost=stage.lost,
        planned=verdicts,
    )
    say(FORMATS[arguments.format](trial))
    return FOUND if any(entity.troubles for entity in verdicts) else 0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.001 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds, from 0.001 to 3600")
    return seconds


def _read(path: Path) -> str:
    """Returns the text of a file.

    Raises ChangelogError (USAGE) if the file cannot be read, is not UTF-8, or contains a NUL character.
    """
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{path}: is not UTF-8 at byte {error.start}") from error
    if "\0" in text:
        raise ChangelogError(
            Kind.USAGE, f"{path}:{text[: text.index(chr(0))].count(chr(10)) + 1}: contains a NUL character"
        )
    return text


def _versions(settings: Config) -> dict[str, list[tuple[str, avro.Schema]]]:
    """Returns, for each entity, the versions of its columns that the changelog has, each as a label and a schema.

    Returns an empty mapping if the changelog cannot be reached, for example from CI.
    """
    versions: dict[str, list[tuple[str, avro.Schema]]] = {}
    with contextlib.suppress(ChangelogError):
        for version in read_versions(open_log(settings)):
            schema = avro.state_schema(version.entity, version.columns, version.key, settings.prefix)
            del schema[PARTITION]  # a version does not record the partition columns
            versions.setdefault(version.entity, []).append((f"version {version.number}", schema))
    return versions


def _files(folder: Path, prefix: str) -> dict[str, avro.Schema]:
    """Reads the schema files in `folder`. Returns, by entity, the schemas of the changelog that `prefix` names.

    Skips files with other schemas. Also skips invalid files, which `changelog schemas check` reports.
    """
    schemas = {}
    for contract in read([folder]) if folder.is_dir() else ():
        entity_path = avro.entity_of(contract.schema)
        with contextlib.suppress(ValueError):
            if entity_path is not None and entity_path[0] == prefix and avro.state_columns(contract.schema):
                schemas[entity_path[1]] = contract.schema
    return schemas
