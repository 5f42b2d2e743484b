"""The tables of the audited campaigns, the triggers that record every change of them, and their configuration."""

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from tests.campaigns._audit.values import SHORT_MAX, SHOWN

SLOT = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """How an entity is keyed, placed and logged.

    `full` tells REPLICA IDENTITY FULL from DEFAULT; `long` names the columns that are stored outside their row,
    `composites` those whose type is altered. A table is published from the start, or it is added `later`, or, if its
    rows are `wide`, where the sink takes such.
    """

    key: tuple[str, ...]
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
        """The columns that choose the partition."""
        return self.partition_by or self.key


ENTITIES: Mapping[str, Entity] = {
    "customer": Entity(key=("id",), partitions=3),
    "purchase": Entity(key=("id",), partition_by=("customer_id",), partitions=4),
    "purchase_line": Entity(key=("purchase_id", "no"), partitions=2, full=False),
    "ledger": Entity(key=("id",)),
    "document": Entity(key=("id",), full=False, long=("body", "blob")),
    "page": Entity(key=("id",), long=("body",)),
    "place": Entity(key=("id", "region"), partitions=2, composites=("spot",), partitioned=True),
    "seat": Entity(key=("code",), partitions=2, full=False),
    "wide": Entity(key=("id",), full=False, long=("body",), wide=True),
    "late_full": Entity(key=("id",), long=("body",), later=True),
    "late_default": Entity(key=("id",), full=False, long=("body",), later=True),
}
MIGRATED = ("ledger", "document")
"""The tables whose columns change while they are written to."""

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


def prepare(dsn: str, rows: int) -> None:
    """Creates the tables with their triggers and the slot that sees every commit, and then `rows` rows in each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for setting in ("TimeZone = 'UTC'", "IntervalStyle = 'iso_8601'"):
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_AUDIT.encode())
        connection.execute(_TABLES.encode())
        for name, entity in ENTITIES.items():
            for statement in _recorded(name, entity):
                connection.execute(statement.encode())
        connection.execute(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')".encode())
        connection.execute(_FILL.format(rows=rows).encode())


def _recorded(name: str, entity: Entity) -> list[str]:
    """The table's triggers and replica identity."""
    apart = () if entity.wide else entity.long  # what is wide is stored outside its row, compressed or not
    columns = ", ".join(f"ALTER COLUMN {column} SET STORAGE EXTERNAL" for column in apart)
    recorded = f"EXECUTE FUNCTION audit.record('{name}')"
    return [
        f"CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON {name} FOR EACH ROW {recorded}",
        f"CREATE TRIGGER emptied AFTER TRUNCATE ON {name} FOR EACH STATEMENT {recorded}",
        *([f"ALTER TABLE {name} {columns}"] if columns else []),
        *([f"ALTER TABLE {name} REPLICA IDENTITY FULL"] if entity.full else []),
    ]


def restate(table: str) -> str:
    """The statement that records every row of a table whose columns were changed in the same transaction."""
    return (
        "INSERT INTO audit.change (op, entity, types, new)"
        f" SELECT 'ALTER', '{table}', audit.types('{table}'::regclass), to_jsonb(t) FROM {table} AS t"
    )


def configuration(names: list[str]) -> str:
    """The sections of these entities."""
    return "".join(map(_section, names))


def _section(name: str) -> str:
    entity = ENTITIES[name]
    by = ", ".join(f'"{column}"' for column in entity.partition_by)
    lines = [
        f"[entities.{name}]",
        f'table = "public.{name}"',
        f"partitions = {entity.partitions}",
        *([f"partition_by = [{by}]"] if by else []),
        'on_truncate = "publish"',
    ]
    return "\n".join(lines) + "\n"
