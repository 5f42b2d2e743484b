"""Resolves entities: makes them from the configuration and from the tables that the database has.

An entity is one table as the changelog publishes it.
"""

import fnmatch
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from changelog.connectors.config import OWN_ENVELOPE, Config, EntityConfig, ProvenanceConfig, raise_problems
from changelog.connectors.sources import TableInfo
from changelog.envelope.entity import RESERVED, Entity, Evolution
from changelog.envelope.model import Stamp

TableName = tuple[str, str]

_TABLE = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')


def parse_table(text: str, home: str = "public") -> TableName:
    """Returns the schema and the name of the table that `text` names; the schema is `home` if `text` has none.

    Letters keep their case, with or without quotes. A schema or a name that contains a dot or a quote must be in
    quotes, as in SQL. Raises ValueError if `text` is not the name of a table.
    """
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text} is not a table; write SCHEMA.TABLE, with quotes around a name that holds a dot")
    schema, name = (_unquote(part) if part else home for part in match.groups())
    return schema, name


def table_text(table: TableName) -> str:
    """Returns a table as `SCHEMA.NAME`, in the form that `parse_table` reads."""
    return ".".join(_quote(part) for part in table)


def entity_name(table: TableName, home: str = "public") -> str:
    """Returns the name of a table's entity if the configuration sets none; empty if no name can be made.

    For a table in the schema `home`, the name is made from the table's name; for another table, from `SCHEMA-NAME`.
    The name depends only on the table itself, so a table that is created later does not rename an entity.
    """
    schema, name = table
    text = name if schema == home else f"{schema}-{name}"
    ascii_ = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_-]+", "_", ascii_).strip("_")


def resolve(config: Config, tables: Sequence[TableInfo]) -> list[Entity]:
    """Returns the entities that `config` makes of the database's `tables`. The entities are sorted by name.

    Raises one ChangelogError (USAGE) that lists all problems: names of tables or columns that the database does not
    have, tables without a key, and settings that contradict each other.
    """
    by_name = {(table.schema, table.name): table for table in tables}
    problems: list[str] = []
    table_of = _bind(config, by_name, problems)
    entities = []
    for name, table in sorted(table_of.items()):
        settings = config.entities.get(name, EntityConfig())
        entity_problems = list(_entity_problems(settings, table)) or list(_envelope_problems(config, settings, table))
        problems += [f"entities.{name}{text}" for text in entity_problems]
        if not entity_problems:
            entities.append(_entity(name, settings, table, config))
    if not table_of and not problems:
        problems.append("tables.include: matches no table")
    raise_problems("configuration", problems)
    return entities


def _bind(config: Config, tables: dict[TableName, TableInfo], problems: list[str]) -> dict[str, TableInfo]:
    """Returns the table of each entity, by the entity's name. Adds the errors that it finds to `problems`.

    If an [entities.NAME] names a table, the patterns of [tables] make no second entity of this table.
    """
    table_of: dict[str, TableInfo] = {}
    owners: dict[TableName, str] = {}
    for name, entity in config.entities.items():
        if entity.table is None:
            continue
        try:
            table = parse_table(entity.table, config.source.home)
        except ValueError as error:
            problems.append(f"entities.{name}.table: {error}")
            continue
        if table not in tables:
            problems.append(f"entities.{name}.table: {_absent(table, tables, config)}")
        elif table in owners:
            problems.append(
                f"entities.{name}.table: {table_text(table)} is already the table of the entity {owners[table]}"
            )
        else:
            table_of[name] = tables[table]
            owners[table] = name
    for table in sorted(_matching(config, tables) - owners.keys()):
        name = entity_name(table, config.source.home)
        if not name or name in RESERVED or name in table_of:
            problems.append(
                f"tables: {table_text(table)} cannot be the entity {name!r}, because that name is "
                f"{'taken' if name else 'empty'}; name the entity: [entities.NAME] table = '{table_text(table)}'"
            )
        else:
            table_of[name] = tables[table]
    without_table = [name for name, entity in config.entities.items() if entity.table is None and name not in table_of]
    problems += [f'entities.{name}: no table has this name; add table = "SCHEMA.TABLE"' for name in without_table]
    return table_of


def _matching(config: Config, tables: dict[TableName, TableInfo]) -> set[TableName]:
    if config.tables is None:
        return set()
    include, exclude = config.tables.include, config.tables.exclude
    return {table for table in tables if matches(table, include) and not matches(table, exclude)}


def matches(table: TableName, patterns: Sequence[str]) -> bool:
    """Returns whether one of the patterns matches the text `SCHEMA.NAME` of a table; `*` matches any text."""
    return any(fnmatch.fnmatchcase(".".join(table), pattern) for pattern in patterns)


def _absent(table: TableName, tables: dict[TableName, TableInfo], config: Config) -> str:
    elsewhere = [table_text(other) for other in tables if other[1].lower() == table[1].lower()]
    if config.source.kind == "debezium" and not elsewhere:
        return (
            f"there is no event of the table {table_text(table)} yet that can be read; let Debezium publish one, or "
            'add the key, as in key = ["id"]; if there are events, `changelog check` says why they cannot be read'
        )
    advice = f"did you mean {elsewhere[0]}?" if elsewhere else "create it, or correct the name"
    if config.source.kind == "mysql":  # its catalogue has only tables that the account may read
        advice += f"; or GRANT SELECT ON {table_text(table)} to the service's account"
    return f"the database has no table {table_text(table)}; {advice}"


def _entity_problems(settings: EntityConfig, table: TableInfo) -> Iterator[str]:
    """Yields the problems of one entity's `settings`, or of its table.

    Each text begins with the path of the setting below [entities.NAME], such as `.key`.
    """
    columns = {column.name: column for column in table.columns}
    columns_by_path = {
        "key": settings.key or (),
        "partition_by": settings.partition_by or (),
        "columns": [name for name in settings.columns if name != "*"],
        "exclude_columns": settings.exclude_columns,
        "mask": list(settings.mask),
    }
    missing = [(path, name) for path, names in columns_by_path.items() for name in names if name not in columns]
    for path, name in missing:
        yield f".{path}: the table {_text(table)} has no column {name}; it has {', '.join(columns)}"
    if missing:
        return
    key = _key(settings, table)
    if not key:
        yield f': the table {_text(table)} has no primary key; add key = ["COLUMN"], or exclude the table'
        return
    key_problem = table.key_problem(key)
    if key_problem is not None:
        yield f".key: {key_problem}"
    partition_by = settings.partition_by or key
    for name in partition_by:
        if name not in key and not columns[name].not_null:
            yield f".partition_by: column {name} of the table {_text(table)} may be null; make it NOT NULL"
    for name in dict.fromkeys((*key, *partition_by)):
        if name in settings.mask:
            yield f".mask: column {name} is a key or partition column, which cannot be masked"
        is_included = "*" in settings.columns or name in settings.columns
        if name in key and (not is_included or name in settings.exclude_columns):
            yield f".columns: key column {name} must be published"


def _envelope_problems(config: Config, settings: EntityConfig, table: TableInfo) -> Iterator[str]:
    """Yields a problem for each setting of one entity that the configured envelope does not allow.

    Consumers of other envelopes do not know positions, so they cannot order the messages of a key that are in several
    partitions. Each text begins with the path of the setting, as in `_entity_problems`.
    """
    if config.envelope == OWN_ENVELOPE:
        return
    where = f'[sink] envelope = "{config.envelope}"'
    if settings.partitions > 1 and not set(settings.partition_by or ()) <= set(_key(settings, table)):
        yield f".partition_by: {where} needs all changes of a key in one partition; name only columns of the key"
    if settings.on_truncate == "publish":
        where_to = ""
        if config.envelope == "debezium":
            where_to = " in Avro" if config.codec.endswith("avro") else " to several partitions"
        if config.codec != "debezium-json" or settings.partitions > 1:
            yield f'.on_truncate: {where} cannot publish truncates{where_to}; set on_truncate = "stop"'


def default_stamps(config: Config, entities: Iterable[str]) -> dict[str, Stamp]:
    """Returns the stamps that changes of these entities get if their applications write none."""
    sections = {name: config.entities.get(name) for name in entities}
    return {
        name: default_stamp((section and section.provenance) or config.provenance) for name, section in sections.items()
    }


def default_stamp(settings: ProvenanceConfig) -> Stamp:
    """Returns the stamp that changes get under these settings if their applications write none."""
    default = settings.default
    return Stamp(api_version=default.api_version, service_name=default.service_name, identifier=default.identifier)


def _entity(name: str, settings: EntityConfig, table: TableInfo, config: Config) -> Entity:
    key = _key(settings, table)
    stamps = settings.provenance or config.provenance
    schemas = settings.schemas or config.schemas
    return Entity(
        name=name,
        table=(table.schema, table.name),
        key=key,
        partition_by=settings.partition_by or key,
        partitions=settings.partitions,
        columns=None if "*" in settings.columns else settings.columns,
        exclude_columns=settings.exclude_columns,
        where=settings.where,
        masks=settings.mask,
        immutable=settings.immutable,
        on_change_of_immutable=settings.on_change_of_immutable,
        on_truncate=settings.on_truncate,
        on_unlogged=settings.on_unlogged,
        missing_stamp=stamps.missing,
        default_stamp=default_stamp(stamps),
        evolution=Evolution(
            mode=schemas.compatibility,
            on_incompatible=schemas.on_incompatible,
            on_restated=schemas.on_restated,
        ),
    )


def _key(settings: EntityConfig, table: TableInfo) -> tuple[str, ...]:
    return settings.key or table.primary_key


def _text(table: TableInfo) -> str:
    return table_text((table.schema, table.name))


def _quote(part: str) -> str:
    return '"' + part.replace('"', '""') + '"' if re.search(r'[".]', part) else part


def _unquote(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
