"""Creates tables in PostgreSQL, one of them with a column of every type. Changes rows for `debezium_events`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS, codec_for
from changelog.connectors.sources.postgres.values.types import TypeCatalog

COLUMNS = {
    "c_bool": "boolean",
    "c_smallint": "smallint",
    "c_int": "integer",
    "c_bigint": "bigint",
    "c_oid": "oid",
    "c_real": "real",
    "c_double": "double precision",
    "c_numeric": "numeric(12,2)",
    "c_numeric_any": "numeric",
    "c_money": "money",
    "c_text": "text",
    "c_varchar": "varchar(20)",
    "c_char": "char(5)",
    "c_citext": "citext",
    "c_bytea": "bytea",
    "c_date": "date",
    "c_time": "time",
    "c_time3": "time(3)",
    "c_timetz": "timetz",
    "c_timestamp": "timestamp",
    "c_timestamp3": "timestamp(3)",
    "c_timestamptz": "timestamptz",
    "c_interval": "interval",
    "c_uuid": "uuid",
    "c_inet": "inet",
    "c_cidr": "cidr",
    "c_macaddr": "macaddr",
    "c_bit": "bit(1)",
    "c_bits": "bit(10)",
    "c_varbit": "bit varying(12)",
    "c_varbit_any": "bit varying",
    "c_json": "json",
    "c_jsonb": "jsonb",
    "c_hstore": "hstore",
    "c_enum": "mood",
    "c_domain": "price",
    "c_ints": "int[]",
    "c_texts": "text[]",
    "c_numerics": "numeric(6,2)[]",
    "c_timestamptzs": "timestamptz[]",
    "c_uuids": "uuid[]",
    "c_range": "int4range",
    "c_tstzrange": "tstzrange",
    "c_point": "point",
    "c_ltree": "ltree",
    "c_tsvector": "tsvector",
}

USUAL = {
    "c_bool": "true",
    "c_smallint": "-7",
    "c_int": "42",
    "c_bigint": "9007199254740993",
    "c_oid": "4294967295",
    "c_real": "1.1",
    "c_double": "123456.789",
    "c_numeric": "13.50",
    "c_numeric_any": "123.4500",
    "c_money": "1234.5",
    "c_text": "'a \"b\" \\ ü 😀' || chr(10) || chr(31)",
    "c_varchar": "'varchar'",
    "c_char": "'ab'",
    "c_citext": "'Ci'",
    "c_bytea": r"'\x00ff10'",
    "c_date": "'2026-11-21'",
    "c_time": "'03:10:02.5'",
    "c_time3": "'23:59:59.999'",
    "c_timetz": "'03:10:02.5+02'",
    "c_timestamp": "'2026-11-21 03:10:02.5'",
    "c_timestamp3": "'2026-11-21 03:10:02.123'",
    "c_timestamptz": "'2026-11-21 03:10:02.000001+02'",
    "c_interval": "'4 hours 5 minutes 6.5 seconds'",
    "c_uuid": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
    "c_inet": "'10.0.0.1/8'",
    "c_cidr": "'10.0.0.0/8'",
    "c_macaddr": "'08:00:2b:01:02:03'",
    "c_bit": "B'1'",
    "c_bits": "B'0100000001'",
    "c_varbit": "B'101'",
    "c_varbit_any": "B'1100'",
    "c_json": '\'{"a": 1.0, "a":"ü"}\'',
    "c_jsonb": '\'{"b": [1, null, 1.50], "a": "x"}\'',
    "c_hstore": "'a=>1, b=>NULL'",
    "c_enum": "'ok'",
    "c_domain": "7.25",
    "c_ints": "'{1,NULL,3}'",
    "c_texts": '\'{a,"b,\\"",NULL}\'',
    "c_numerics": "'{1.50,2}'",
    "c_timestamptzs": "'{2026-11-21 03:10:02+00}'",
    "c_uuids": "'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}'",
    "c_range": "'[1,10)'",
    "c_tstzrange": "'[2026-11-21 03:10:02+00,)'",
    "c_point": "'(1,2.5)'",
    "c_ltree": "'a.b.c'",
    "c_tsvector": "'fat:1 cat:2'",
}

UNUSUAL = {
    "c_bool": "false",
    "c_bigint": "-9223372036854775808",
    "c_real": "'-1e-20'",
    "c_double": "1e23",
    "c_numeric": "-0.05",
    "c_numeric_any": "-12345678901234567890123456789.5",
    "c_text": "''",
    "c_bytea": r"'\x'",
    "c_date": "'0044-03-15 BC'",
    "c_time": "'24:00:00'",
    "c_timestamp": "'0044-03-15 01:02:03.25 BC'",
    "c_timestamptz": "'12345-01-01 00:00:00+00'",
    "c_interval": "'1 year 2 mons -3 days 04:05:06.5'",
    "c_bits": "B'1000000000'",
    "c_varbit_any": "B'0011'",
    "c_json": "'null'",
    "c_jsonb": "'\"null\"'",
    "c_hstore": "''",
    "c_ints": "'{}'",
}

INFINITE = {
    "c_real": "'NaN'",
    "c_double": "'-Infinity'",
    "c_date": "'infinity'",
    "c_timestamp": "'infinity'",
    "c_timestamptz": "'-infinity'",
}

OPPOSITE = {
    "c_real": "'Infinity'",
    "c_bits": "B'0000000001'",
    "c_varbit": "B'000000000101'",
    "c_date": "'-infinity'",
    "c_timestamp": "'-infinity'",
    "c_timestamptz": "'infinity'",
    "c_timetz": "'03:10:02'",
    "c_timestamp3": "'2026-11-21 03:10:02'",
}

DDL = f"""
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree;
CREATE TYPE mood AS ENUM ('ok', 'x, y');
CREATE DOMAIN price AS numeric(10,2);
CREATE TABLE types (id int PRIMARY KEY, {", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())});
ALTER TABLE types REPLICA IDENTITY FULL;
CREATE TABLE small (id int PRIMARY KEY, name text NOT NULL, n int NOT NULL DEFAULT 7, note text);
CREATE TABLE pairs (a int, b text, note text, PRIMARY KEY (a, b));
CREATE TABLE wide (id int PRIMARY KEY, n int, body text, bin bytea, tags text[], ints int[], ids uuid[], bag hstore,
  doc jsonb);
ALTER TABLE wide SET (toast_tuple_target = 128);
ALTER TABLE wide ALTER body SET STORAGE EXTERNAL, ALTER bin SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL,
  ALTER ints SET STORAGE EXTERNAL, ALTER ids SET STORAGE EXTERNAL, ALTER bag SET STORAGE EXTERNAL,
  ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE done (id int PRIMARY KEY);
CREATE PUBLICATION capture FOR ALL TABLES;
"""

WIDE = """
INSERT INTO wide SELECT 1, 1, repeat('body', 120), convert_to(repeat('byte', 120), 'UTF8'),
  array_agg('tag' || n), array_agg(n), array_agg(md5(n::text)::uuid), hstore('k', repeat('v', 500)),
  jsonb_build_object('d', repeat('d', 500)) FROM generate_series(1, 100) AS n;
"""

CHANGES = (
    "UPDATE types SET c_int = 43, c_text = 'changed' WHERE id = 1",
    "DELETE FROM types WHERE id = 2",
    "BEGIN; INSERT INTO small VALUES (2, 'two', 2, NULL); UPDATE small SET note = 'n' WHERE id = 2; COMMIT",
    "UPDATE small SET id = 3 WHERE id = 2",
    "DELETE FROM small WHERE id = 3",
    "INSERT INTO pairs VALUES (1, 'x', 'y')",
    "UPDATE pairs SET b = 'z' WHERE a = 1",
    WIDE,
    "UPDATE wide SET n = 2",
    "SELECT pg_logical_emit_message(true, 'provenance', '{\"apiVersion\":\"1\"}')",
    "SELECT pg_logical_emit_message(false, 'other', '\\x00ff'::bytea)",
    "TRUNCATE small",
    "INSERT INTO done VALUES (1)",
)

CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.name": "capture",
    "publication.autocreate.mode": "disabled",
    "slot.drop.on.stop": "false",
    "skipped.operations": "none",
}

JSON = "org.apache.kafka.connect.json.JsonConverter"
WITH_SCHEMA = {"key.converter": JSON, "value.converter": JSON, "header.converter": JSON}
WITHOUT_SCHEMA = {
    **WITH_SCHEMA,
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "header.converter.schemas.enable": "false",
}


def _converters(settings: Mapping[str, str]) -> Mapping[str, str]:
    """Returns these settings for two converters: that of keys and that of values."""
    return {f"{of}.converter{name}": value for of in ("key", "value") for name, value in settings.items()}


_AVRO = {
    "": "io.apicurio.registry.utils.converter.AvroConverter",
    ".apicurio.registry.url": "{registry}",
    ".apicurio.registry.auto-register": "true",
    ".apicurio.registry.as-confluent": "true",
    ".apicurio.registry.headers.enabled": "false",
    ".apicurio.registry.use-id": "globalId",
}
AVRO = _converters(_AVRO)
UNWRAP = {
    **WITHOUT_SCHEMA,
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
}

FORMS: Mapping[str, Mapping[str, str]] = {
    "schema": {
        **WITH_SCHEMA,
        "provide.transaction.metadata": "true",
        "heartbeat.interval.ms": "1000",
    },
    "plain": {**WITHOUT_SCHEMA, "hstore.handling.mode": "map"},
    "connect": {
        **WITH_SCHEMA,
        "time.precision.mode": "connect",
        "decimal.handling.mode": "double",
        "binary.handling.mode": "hex",
        "interval.handling.mode": "string",
        "hstore.handling.mode": "map",
    },
    "iso": {
        **WITH_SCHEMA,
        "time.precision.mode": "isostring",
        "decimal.handling.mode": "string",
        "binary.handling.mode": "base64",
        "value.converter.decimal.format": "NUMERIC",
        "unavailable.value.placeholder": "hex:00ff7f",
    },
    "nano": {
        **WITH_SCHEMA,
        "time.precision.mode": "nanoseconds",
        "binary.handling.mode": "base64-url-safe",
        "value.converter.decimal.format": "NUMERIC",
        "include.unknown.datatypes": "true",
    },
    "avro": {**AVRO, "provide.transaction.metadata": "true"},
    "avro8": {**AVRO, **_converters({".apicurio.registry.as-confluent": "false"})},
    "avroheaders": {**AVRO, **_converters({".apicurio.registry.headers.enabled": "true"})},
    "cloud": {
        **WITH_SCHEMA,
        "value.converter": "io.debezium.converters.CloudEventsConverter",
    },
    "cloudplain": {
        **WITHOUT_SCHEMA,
        "value.converter": "io.debezium.converters.CloudEventsConverter",
        "value.converter.json.schemas.enable": "false",
    },
    "rewrite": {
        **UNWRAP,
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": "op,db,schema,table,source.ts_us,txId,lsn,source.connector,source.snapshot",
    },
    "headers": {
        **UNWRAP,
        **WITH_SCHEMA,
        "transforms.unwrap.delete.tombstone.handling.mode": "tombstone",
        "transforms.unwrap.add.headers": "op,db,schema,table,source.ts_us,txId",
    },
}
"""The forms of events, each with the settings of its connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A database whose changes are captured. `snapshot` names a table that has rows before the connectors start.

    `change` makes the changes. `published` has the values that our own reader publishes for the same rows. `jars` names
    the folder with the connector's jars.
    """

    jars: str
    schema: str
    snapshot: str
    connectors: Mapping[str, Mapping[str, str]]
    change: Callable[[], None]
    published: Mapping[str, Any]


@contextmanager
def captured(_name: str) -> Iterator[Source]:
    """Runs PostgreSQL, with filled tables, until the `with` block ends."""
    with temporary_server() as server:
        connection = server.dsn()
        with psycopg.connect(connection, autocommit=True) as session:
            session.execute(DDL.encode())
            for number, values in enumerate((USUAL, {}, {**USUAL, **UNUSUAL}, INFINITE, OPPOSITE), 1):
                names, expressions = ["id", *values], [str(number), *values.values()]
                session.execute(f"INSERT INTO types ({','.join(names)}) VALUES ({','.join(expressions)})".encode())
            session.execute("INSERT INTO small VALUES (1, 'one', 1, 'first')")
        parameters = {
            "database.hostname": "127.0.0.1",
            "database.port": str(server.port),
            "database.dbname": "postgres",
            "database.user": "postgres",
        }
        yield Source(
            jars="debezium-avro",
            schema="public",
            snapshot="types",
            connectors={
                form: {**CONNECTOR, **parameters, **properties, "topic.prefix": form, "slot.name": form}
                for form, properties in FORMS.items()
            },
            change=lambda: _change(server),
            published=_published(connection),
        )


def _change(server: PostgresServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as session:
        for change in CHANGES:
            session.execute(change.encode())


def _published(dsn: str) -> Mapping[str, Any]:
    """Returns what our reader publishes for the table `types`: for each id, the JSON of each column's value."""
    options = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    with psycopg.connect(make_conninfo(dsn, options=options), autocommit=True) as connection:

        def query(sql: str, parameters: Any) -> list[tuple[Any, ...]]:
            return connection.execute(sql.encode(), parameters).fetchall()

        catalog = TypeCatalog(query)
        result = connection.execute("SELECT * FROM public.types ORDER BY id").pgresult
        assert result is not None
        codecs = [codec_for(catalog.resolve(result.ftype(i)), result.fmod(i)) for i in range(result.nfields)]
        names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
        rows = {}
        for row in range(result.ntuples):
            texts = [result.get_value(row, i) for i in range(result.nfields)]
            rows[str(row + 1)] = {
                name: None if text is None else codec.to_json(text).decode()
                for name, text, codec in zip(names, texts, codecs, strict=True)
            }
        return rows
