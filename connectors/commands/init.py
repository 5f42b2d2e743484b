"""`changelog init`: writes a configuration for a live database, and the schema files of its entities."""

import argparse
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.config import TopicsConfig
from changelog.connectors.permissions import DATA_FILE, make_file
from changelog.connectors.schema_files.generated import FOLDER, FileOutcome, generate
from changelog.connectors.sources import TableInfo, TableName
from changelog.connectors.sources.candidates import Candidate
from changelog.connectors.terminal import safe
from changelog.connectors.wiring.entities import entity_name, matches, resolve, table_text
from changelog.connectors.wiring.sources import candidate, event_trigger_script
from changelog.envelope.entity import RESERVED
from changelog.envelope.errors import ChangelogError, Kind

DSN_VARIABLE = "DATABASE_URL"
"""The environment variable with the connection string. The configuration has only the name of this variable, so it
contains no password.
"""

HEAD = """\
# `changelog init` wrote this from the tables that it found; docs/reference/configuration.md describes all settings.
#
# By default, the service stops at a TRUNCATE, and you decide with `changelog accept` whether it is published. To
# publish every TRUNCATE of an entity, set on_truncate = "publish" in the section of that entity.
#
# By default, the service also stops at the first row after a column was renamed, because readers of the old name would
# no longer get its values. `changelog schemas accept` lets one such change pass. To let all of them pass, set
# on_incompatible = "publish" in [schemas].

name = {name}

[source]
{source}

[sink]
{sink}

[provenance]                    # who is named as the author of a change if its application wrote no stamp
missing = "default"
default = {{ apiVersion = "unknown", serviceName = "unknown", identifier = "" }}

[service]
listen = "127.0.0.1:9464"       # /live, /ready and /metrics
"""


DSN = """\
kind = {kind}
dsn = "env:{variable}\""""

DEBEZIUM = """\
kind = "debezium"
connector = {connector}         # the connector of Debezium that sent these events

[source.topics]
bootstrap_servers = {servers}
include = {include}
client = {{}}                     # options for librdkafka: {{ "security.protocol" = "SASL_SSL", … }}"""

FILES = """\
kind = "files"
path = "data/changelog\""""

KAFKA = """\
kind = "kafka"
bootstrap_servers = {servers}
codec = "json"                  # or "avro", with registry = "http://HOST:8081"
client = {{}}                     # options for librdkafka: {{ "security.protocol" = "SASL_SSL", … }}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog init`."""
    parser.add_argument("--dsn", help=f"the database; default: the environment variable {DSN_VARIABLE}")
    parser.add_argument(
        "--debezium",
        nargs="+",
        metavar="TOPIC",
        help="instead of a database, read topics with events of Debezium; patterns are allowed, as in 'app.public.*'",
    )
    parser.add_argument("--debezium-servers", metavar="HOST:PORT,…", help="with --debezium, the brokers of the topics")
    parser.add_argument("--registry", metavar="URL", help="with --debezium, the schema registry, if events are in Avro")
    parser.add_argument("--name", help="the name of the changelog; default: the name of the database")
    parser.add_argument(
        "--tables", nargs="+", metavar="PATTERN", help="only tables that match a pattern such as 'public.*'"
    )
    parser.add_argument("--sink", choices=("files", "kafka"), default="files", help="where the changelog goes")
    parser.add_argument("--bootstrap-servers", metavar="HOST:PORT,…", help="with --sink kafka, the brokers")
    parser.add_argument("--force", action="store_true", help="overwrite an existing configuration")
    scripts = parser.add_mutually_exclusive_group()
    scripts.add_argument(
        "--event-trigger",
        action="store_true",
        help="PostgreSQL: only print the SQL of an event trigger that tells the service of DDL",
    )
    scripts.add_argument(
        "--grants",
        action="store_true",
        help="only print SQL that creates the roles or accounts of the service and gives them rights on the "
        "configured tables, or on those that --tables names",
    )
    scripts.add_argument(
        "--stamps",
        action="store_true",
        help="PostgreSQL: only print the SQL of triggers that stamp each change with the name of its application; the "
        "triggers are for the configured tables, or for those that --tables names",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Writes the configuration, and the schema files beside it, and shows which tables are published.

    With `--event-trigger`, `--grants` or `--stamps`, only prints SQL.
    """
    if arguments.event_trigger:
        print(event_trigger_script(arguments.dsn or os.environ.get(DSN_VARIABLE)), end="")
        return 0
    path: Path = arguments.config
    if path.exists() and not (arguments.force or _script(arguments)):
        raise ChangelogError(Kind.USAGE, f"{path} already exists", hint="--force overwrites it")
    if (arguments.sink == "kafka") != (arguments.bootstrap_servers is not None):
        raise ChangelogError(Kind.USAGE, "--sink kafka and --bootstrap-servers go together", hint="give both")
    if arguments.debezium:
        return _from_topics(arguments, path)
    dsn = arguments.dsn or os.environ.get(DSN_VARIABLE)
    if dsn is None:
        raise ChangelogError(Kind.USAGE, "no database is named", hint=f"give --dsn, or set {DSN_VARIABLE}")
    source = candidate(dsn)
    database, patterns = source.name(), arguments.tables or [source.usual_tables]
    tables = source.tables(partial(matches, patterns=patterns))
    if not tables:
        raise ChangelogError(
            Kind.USAGE,
            f"no table of the database {database} matches {' '.join(patterns)}",
            hint="choose tables with --tables",
        )
    if script := _script(arguments):
        script_tables = tables if arguments.tables or not path.exists() else _configured(path, dsn, tables)
        print(script(source, {(table.schema, table.name) for table in script_tables}))
        return 0
    name = arguments.name or re.sub(r"[^a-z0-9_-]+", "_", database.lower())
    _write(path, config_text(name, source, tables, bootstrap_servers=arguments.bootstrap_servers))
    _show(path, tables)
    if any(table.usable_key() for table in tables):
        outcomes = generate(config.load(path, {**os.environ, DSN_VARIABLE: dsn}), (), path.parent / FOLDER)
        _show_schemas(path.parent / FOLDER, outcomes)
    show.console().print(Text(f"next: export {DSN_VARIABLE}=…, then `changelog check` and `changelog run`"))
    return 0


def _script(arguments: argparse.Namespace) -> Callable[[Candidate, Collection[TableName]], str] | None:
    """Returns the function that makes the SQL that the arguments request; None if they request no SQL."""
    if arguments.grants:
        return lambda source, tables: source.grants(tables)
    return (lambda source, tables: source.stamps(tables)) if arguments.stamps else None


def _from_topics(arguments: argparse.Namespace, path: Path) -> int:
    """Writes a configuration that reads Debezium's topics, and the schema files beside it."""
    if arguments.debezium_servers is None:
        raise ChangelogError(Kind.USAGE, "--debezium needs the brokers", hint="give --debezium-servers HOST:PORT")
    topics = TopicsConfig(
        bootstrap_servers=arguments.debezium_servers,
        include=tuple(arguments.debezium),
        registry=arguments.registry,
    )
    from changelog.connectors.wiring import debezium  # noqa: PLC0415 - few services need its many modules

    source = debezium.candidate(topics)
    patterns = arguments.tables or [source.usual_tables]
    tables = source.tables(partial(matches, patterns=patterns))
    if not tables:
        raise ChangelogError(Kind.USAGE, f"no table matches {' '.join(patterns)}", hint="choose tables with --tables")
    if script := _script(arguments):
        print(script(source, {(table.schema, table.name) for table in tables}))
        return 0
    section = DEBEZIUM.format(
        connector=_toml(source.connector),
        servers=_toml(topics.bootstrap_servers),
        include=_toml(list(topics.include)),
    )
    if topics.registry is not None:
        section += f"\nregistry = {_toml(topics.registry)}"
    name = arguments.name or re.sub(r"[^a-z0-9_-]+", "_", source.name().lower())
    entities = _entities(tables, source.home, source.types)
    _write(path, _config_text(name, section, entities, arguments.bootstrap_servers))
    _show(path, tables)
    if any(table.usable_key() for table in tables):
        outcomes = generate(config.load(path, os.environ), (), path.parent / FOLDER)
        _show_schemas(path.parent / FOLDER, outcomes)
    show.console().print(Text("next: `changelog check` and `changelog run`"))
    return 0


def _configured(path: Path, dsn: str, tables: Sequence[TableInfo]) -> list[TableInfo]:
    """Returns those of the tables that the configuration publishes: SQL for other tables is not needed."""
    settings = config.load(path, {**os.environ, DSN_VARIABLE: dsn})
    table_names = {entity.table for entity in resolve(settings, tables)}
    return [table for table in tables if (table.schema, table.name) in table_names]


def config_text(
    name: str, source: Candidate, tables: Sequence[TableInfo], *, bootstrap_servers: str | None = None
) -> str:
    """Returns a configuration that publishes every table with a usable key, and has the other tables as comments.

    The sink of this configuration is Kafka if `bootstrap_servers` are given, otherwise files.
    """
    section = DSN.format(kind=_toml(source.kind), variable=DSN_VARIABLE)
    return _config_text(name, section, _entities(tables, source.home), bootstrap_servers)


def _config_text(name: str, source: str, entities: Iterable[str], bootstrap_servers: str | None) -> str:
    """Returns a configuration. `source` is the text of its section `[source]`, and `entities` are those of the
    sections `[entities.X]`.
    """
    sink = FILES if bootstrap_servers is None else KAFKA.format(servers=_toml(bootstrap_servers))
    head = HEAD.format(name=_toml(name), source=source, sink=sink)
    return "\n".join([head, *entities])


def _no_types(_table: TableName) -> Mapping[str, str]:
    return {}


def _entities(
    tables: Sequence[TableInfo], home: str, types: Callable[[TableName], Mapping[str, str]] = _no_types
) -> Iterator[str]:
    """Yields each table's section of the configuration. `types` returns the column types that a section declares."""
    used_names: set[str] = set(RESERVED)
    for table in tables:
        text = table_text((table.schema, table.name))
        name = _free(entity_name((table.schema, table.name), home) or "entity", used_names)
        key = table.usable_key()
        lines = [
            f"[entities.{name}]",
            f"table = {_toml(text)}",
            f"key = {_toml(list(key or ['COLUMN']))}",
            "partitions = 1",
            *_types(types((table.schema, table.name))),
        ]
        if key is None:
            yield f"# {safe(text)} is left out, because it has no key. A key is a unique index on NOT NULL columns that"
            yield "# is not deferrable, and that covers all rows and whole values. Once the table has a key, uncomment"
            yield "# these lines:"
            lines = [f"# {line}" for line in lines]
        yield "\n".join(lines) + "\n"


def _types(types: Mapping[str, str]) -> Iterator[str]:
    if types:
        yield "# These types are guessed, because the events carry no schema. Correct those of times, decimals and"
        yield '# bytes, for example to "MicroTimestamp", "Date", "decimal(12,2)" or "bytes";'
        yield "# docs/reference/debezium-events.md lists the types."
        yield "types = { " + ", ".join(f"{_toml(name)} = {_toml(type_)}" for name, type_ in types.items()) + " }"


def _free(name: str, used_names: set[str]) -> str:
    candidate_name, suffix = name, 1
    while candidate_name in used_names:
        suffix += 1
        candidate_name = f"{name}_{suffix}"
    used_names.add(candidate_name)
    return candidate_name


def _toml(value: object) -> str:
    """Returns a string, or a list of strings, as TOML.

    Their JSON form is also valid TOML, except for a DEL character: JSON does not escape it, so `safe` does.
    """
    return safe(json.dumps(value, ensure_ascii=False))


def _write(path: Path, text: str) -> None:
    try:
        make_file(path, DATA_FILE)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"{path} cannot be written ({error.strerror})") from error


def _show(path: Path, tables: Sequence[TableInfo]) -> None:
    console = show.console()
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("table", "key", "rows", "size", tables[0].trait.name):
        grid.add_column(title, justify="right" if title in ("rows", "size") else "left")
    for table in tables:
        key = table.usable_key()
        grid.add_row(
            Text(safe(table_text((table.schema, table.name))), style="bold"),
            Text(safe(", ".join(key))) if key else Text("none: left out", style="red"),
            f"~{max(table.rows_estimate, 0):,}",
            show.size(table.nbytes),
            Text(table.trait.value, style="green" if table.trait.suffices else "yellow"),
        )
    console.print(grid)
    count_with_key = sum(table.usable_key() is not None for table in tables)
    console.print(Text(f"\n{path}: {count_with_key} of {len(tables)} tables", style="bold green"))


def _show_schemas(folder: Path, outcomes: Sequence[FileOutcome]) -> None:
    states = Counter(outcome.state for outcome in outcomes)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    show.console().print(Text(f"{folder}: {counts}", style="bold green"))
