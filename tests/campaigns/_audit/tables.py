"""Creates the tables of the audit campaigns, and the triggers that record each change. Also writes the configuration of
the entities.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from tests.campaigns._audit.values import SHORT_MAX, SHOWN

SLOT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The key, the partitions and the replica identity of an entity.

    `table` is the schema and the name of the table, if they are not `public` and the name of the entity. `full` means
    REPLICA IDENTITY FULL instead of DEFAULT. `long` names the columns that PostgreSQL stores outside their row, and
    `composites` those with a composite type, which faults alter. A table is published from the start, unless `later` or
    `wide` is set. With `later`, a fault adds the table while the service runs. A table with `wide` rows is added only
    if the sink accepts such rows.
    """

    key: tuple[str, ...]
    table: tuple[str, str] | None = None
    partition_by: tuple[str, ...] = ()
    partitions: int = 1
    full: bool = True
    long: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    partitioned: bool = False
    later: bool = False
    wide: bool = False

    @property
    def placed_by(self) -> tuple[str, ...]:
        """The columns whose values decide to which partition of the changelog a row belongs."""
        return self.partition_by or self.key


HOSTILE = "hostile"
HOSTILE_TABLE = ('sch"ema.\n--', 'ta"ble \u202e.\n;DROP TABLE "seat";--')
HOSTILE_COLUMNS = ('k"ey\n', "select", "a.b %s {} \u00fc\x1b]0;", "'; DROP TABLE seat; --", 'current"')
"""The names in HOSTILE_TABLE and HOSTILE_COLUMNS contain code. This code would run if a program printed the names
without escapes, or put them into a statement without quotes.
"""

ENTITIES: Mapping[str, Entity] = {
    "customer": Entity(key=("id",), partitions=3),
    "purchase": Entity(key=("id",), partition_by=("customer_id",), partitions=4),
    "purchase_line": Entity(key=("purchase_id", "no"), partitions=2, full=False),
    "ledger": Entity(key=("id",)),
    "document": Entity(key=("id",), full=False, long=("body", "blob")),
    "page": Entity(key=("id",), long=("body",)),
    "place": Entity(key=("id", "region"), partitions=2, composites=("spot",), partitioned=True),
    "seat": Entity(key=("code",), partitions=2, full=False),
    HOSTILE: Entity(key=HOSTILE_COLUMNS[:1], partitions=2, full=False, table=HOSTILE_TABLE),
    "wide": Entity(key=("id",), full=False, long=("body",), wide=True),
    "late_full": Entity(key=("id",), long=("body",), later=True),
    "late_default": Entity(key=("id",), full=False, long=("body",), later=True),
}
CROWDED = Entity(key=("id",))
"""The entity of each of the many small tables that a site may have."""

MIGRATED = ("ledger", "document")
"""The tables to which columns are added, and whose columns are altered, while other threads write rows to them."""

_AUDIT = f"""
CREATE SCHEMA audit;
CREATE TABLE audit.change (
    n bigint GENERATED ALWAYS AS IDENTITY,
    xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    op text NOT NULL, entity text NOT NULL DEFAULT '',
    stamp text NOT NULL DEFAULT coalesce(current_setting('audit.stamp', true), ''),
    types jsonb, old jsonb, new jsonb
);
CREATE FUNCTION audit.types(relation oid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_object_agg(attname, format_type(atttypid, NULL)) FROM pg_attribute
    WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped
$$;
CREATE FUNCTION audit.shortened(state jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN length(state ->> 'body') > {SHORT_MAX} THEN jsonb_set(state, '{{body}}', to_jsonb(
        left(state ->> 'body', {SHOWN}) || ' ' || encode(sha256(convert_to(state ->> 'body', 'UTF8')), 'hex')
    )) ELSE state END
$$;
CREATE FUNCTION audit.record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO audit.change (op, entity, types, old, new)
    VALUES (TG_OP, TG_ARGV[0], audit.types(TG_RELID),
        audit.shortened(to_jsonb(OLD)), audit.shortened(to_jsonb(NEW)));
    RETURN NULL;
END
$$;
"""

_TABLES = """
CREATE TYPE tier AS ENUM ('plain', 'silver', 'gold');
CREATE TYPE spot AS (x int, label text);
CREATE TABLE customer (
    id bigint PRIMARY KEY, name text, tier tier DEFAULT 'plain', balance numeric(12,2), ratio float8,
    seen timestamptz DEFAULT clock_timestamp(), tags text[], active boolean DEFAULT true
);
CREATE TABLE purchase (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customer ON DELETE CASCADE ON UPDATE CASCADE,
    state text, total numeric, lines int DEFAULT 0, at timestamp DEFAULT now()
);
CREATE TABLE purchase_line (
    purchase_id bigint REFERENCES purchase ON DELETE CASCADE ON UPDATE CASCADE, no int, sku text, price real,
    PRIMARY KEY (purchase_id, no)
);
CREATE TABLE ledger (
    id bigint PRIMARY KEY, kind text, amount numeric(10,3), day date DEFAULT current_date, open boolean, span int4range,
    customer_id bigint REFERENCES customer ON DELETE SET NULL ON UPDATE CASCADE
);
CREATE TABLE document (
    id bigint PRIMARY KEY, title varchar(80), body text, blob bytea, meta jsonb, took interval DEFAULT '1 day 02:03'
);
CREATE TABLE page (id bigint PRIMARY KEY, title text, body text);
CREATE TABLE place (id bigint, region int, name text, spot spot, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE place_a PARTITION OF place FOR VALUES IN (0, 1);
CREATE TABLE place_b PARTITION OF place FOR VALUES IN (2);
CREATE TABLE place_c PARTITION OF place DEFAULT;
CREATE TABLE seat (code text PRIMARY KEY, holder text, at time DEFAULT '10:00');
CREATE TABLE wide (id bigint PRIMARY KEY, note text, body text);
CREATE TABLE late_full (id bigint PRIMARY KEY, title text, body text);
CREATE TABLE late_default (id bigint PRIMARY KEY, title text, body text);
ALTER TABLE place_a REPLICA IDENTITY FULL;
ALTER TABLE place_b REPLICA IDENTITY FULL;
ALTER TABLE place_c REPLICA IDENTITY FULL;
CREATE FUNCTION count_line() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE purchase SET lines = lines + 1 WHERE id = NEW.purchase_id;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER counted AFTER INSERT ON purchase_line DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION count_line();
"""

_FILL = """
INSERT INTO customer (id, name, balance, ratio, tags)
    SELECT n, 'name ' || n, n * 1.10, n / 7.0, ARRAY['a', NULL] FROM generate_series(1, {rows}) AS n;
INSERT INTO purchase (id, customer_id, state, total) SELECT n, n, 'new', n / 3.0 FROM generate_series(1, {rows}) AS n;
INSERT INTO purchase_line SELECT n, m, 'sku', n / 9.0 FROM generate_series(1, {rows}) AS n, generate_series(1, 2) AS m;
INSERT INTO ledger (id, kind, amount, span) SELECT n, 'kind', n / 8.0, int4range(n, n + 5)
    FROM generate_series(1, {rows}) AS n;
INSERT INTO document (id, title, body, blob, meta)
    SELECT n, 'title', repeat(md5(n::text), 90), decode(repeat(md5(n::text), 90), 'hex'), '{{"a": [1.50, null]}}'
    FROM generate_series(1, {rows}) AS n;
INSERT INTO page SELECT n, 'title', repeat(md5(n::text), 90) FROM generate_series(1, {rows}) AS n;
INSERT INTO place SELECT n, n % 4, 'place', ROW(n, 'here')::spot FROM generate_series(1, {rows}) AS n;
INSERT INTO seat SELECT 'seat "' || n || '"', 'holder' FROM generate_series(1, {rows}) AS n;
INSERT INTO late_full SELECT n, 'title', repeat(md5(n::text), 90) FROM generate_series(1, {rows}) AS n;
INSERT INTO late_default SELECT n, 'title', repeat(md5(n::text), 90) FROM generate_series(1, {rows}) AS n;
"""


def crowd(count: int) -> list[str]:
    """The names of this number of small tables."""
    return [f"crowd_{number:04}" for number in range(count)]


def entity_of(name: str) -> Entity:
    """The entity of this name."""
    return CROWDED if name.startswith("crowd_") else ENTITIES[name]


def table_of(name: str) -> sql.Identifier:
    """The quoted name of an entity's table."""
    return sql.Identifier(*(entity_of(name).table or ("public", name)))


def prepare(dsn: str, rows: int, small: Sequence[str] = ()) -> None:
    """Creates the tables with their triggers, then the slot of `test_decoding`, and then the rows. So the slot has the
    commit of every row.

    Each table gets `rows` rows, except for those in `small`, which get two.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        database = sql.Identifier(connection.info.dbname)
        for setting in ("TimeZone = 'UTC'", "IntervalStyle = 'iso_8601'"):
            connection.execute(sql.SQL("ALTER DATABASE {} SET {}").format(database, sql.SQL(setting)))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_AUDIT.encode())
        connection.execute(_TABLES.encode())
        connection.execute(_hostile_table())
        _record(connection, ENTITIES)
        for names in (small[start : start + 100] for start in range(0, len(small), 100)):
            with connection.transaction():
                for name in names:
                    table = table_of(name)
                    connection.execute(sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, note text)").format(table))
                _record(connection, names)
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [SLOT])
        connection.execute(_FILL.format(rows=rows).encode())
        for name in small:
            connection.execute(sql.SQL("INSERT INTO {} VALUES (1, 'first'), (2, NULL)").format(table_of(name)))


def _hostile_table() -> sql.Composed:
    columns = sql.SQL(", ").join(sql.SQL("{} text").format(sql.Identifier(name)) for name in HOSTILE_COLUMNS)
    schema, table = sql.Identifier(HOSTILE_TABLE[0]), table_of(HOSTILE)
    key = sql.Identifier(HOSTILE_COLUMNS[0])
    create = "CREATE SCHEMA {schema}; CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))"
    return sql.SQL(create).format(schema=schema, table=table, columns=columns, key=key)


def _record(connection: psycopg.Connection, names: Iterable[str]) -> None:
    """Creates the triggers that record changes of these tables. Also sets how the tables store and log their values."""
    for name in names:
        entity, table = entity_of(name), table_of(name)
        apart = () if entity.wide else entity.long  # wide values are stored outside their row in any case
        statements = [
            "CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON {table} FOR EACH ROW {recorded}",
            "CREATE TRIGGER emptied AFTER TRUNCATE ON {table} FOR EACH STATEMENT {recorded}",
            *(f"ALTER TABLE {{table}} ALTER COLUMN {column} SET STORAGE EXTERNAL" for column in apart),
            *(["ALTER TABLE {table} REPLICA IDENTITY FULL"] if entity.full else []),
        ]
        recorded = sql.SQL("EXECUTE FUNCTION audit.record({})").format(sql.Literal(name))
        for statement in statements:
            connection.execute(sql.SQL(statement).format(table=table, recorded=recorded))


def restate(table: str) -> str:
    """Returns a statement that records every row of a table as an `ALTER`. A transaction that alters the columns of the
    table runs this statement.
    """
    return (
        "INSERT INTO audit.change (op, entity, types, new)"
        f" SELECT 'ALTER', '{table}', audit.types('{table}'::regclass), to_jsonb(t) FROM {table} AS t"
    )


def configuration(names: Sequence[str]) -> str:
    """The sections of the configuration for these entities."""
    return "".join(map(_section, names))


def _section(name: str) -> str:
    entity = entity_of(name)
    schema, table = entity.table or ("public", name)
    quoted = table_of(name).as_string(None) if entity.table else f"{schema}.{table}"
    by = f"partition_by = {json.dumps(entity.partition_by)}"
    lines = [
        f"[entities.{name}]",
        f"table = {json.dumps(quoted)}",
        f"partitions = {entity.partitions}",
        *([by] if entity.partition_by else []),
        'on_truncate = "publish"',
    ]
    return "\n".join(lines) + "\n"
