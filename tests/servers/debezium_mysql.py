"""Creates tables in MySQL or MariaDB, one of them with a column of every type. Changes rows for `debezium_events`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql

from bench.measure.debezium import MYSQL_CONNECTORS
from changelog.connectors.servers.mysql import Flavour, MysqlServer, temporary_server
from changelog.connectors.sources.mysql.admin.catalog import read_tables
from changelog.connectors.sources.mysql.session.flavour import Flavour as SourceFlavour
from changelog.connectors.sources.mysql.values.catalog_columns import COLLATIONS, FIELDS, CatalogColumn, column_of
from changelog.connectors.sources.mysql.values.selected import SETTINGS, selected
from changelog.connectors.sources.mysql.values.types import codec_for
from tests.integration.mysql.sessions import ENCODERS
from tests.servers.debezium_postgres import UNWRAP, WITH_SCHEMA, WITHOUT_SCHEMA, Source

DATABASE = "shop"
FLAVOURS: Mapping[Flavour, SourceFlavour] = {"mariadb": SourceFlavour.MARIADB, "mysql": SourceFlavour.MYSQL}

COLUMNS = {
    "c_bool": "tinyint(1)",
    "c_tiny": "tinyint",
    "c_small": "smallint unsigned",
    "c_medium": "mediumint",
    "c_int": "int",
    "c_int_unsigned": "int unsigned",
    "c_bigint": "bigint",
    "c_bigint_unsigned": "bigint unsigned",
    "c_float": "float",
    "c_double": "double",
    "c_decimal": "decimal(12,2)",
    "c_bit": "bit(1)",
    "c_bits": "bit(10)",
    "c_date": "date",
    "c_time": "time",
    "c_time3": "time(3)",
    "c_datetime": "datetime",
    "c_datetime6": "datetime(6)",
    "c_timestamp": "timestamp NULL",
    "c_timestamp3": "timestamp(3) NULL",
    "c_year": "year",
    "c_char": "char(5)",
    "c_varchar": "varchar(50)",
    "c_text": "text",
    "c_latin": "longtext CHARACTER SET latin1",
    "c_binary": "binary(4)",
    "c_varbinary": "varbinary(10)",
    "c_blob": "blob",
    "c_enum": "enum('small','a,b')",
    "c_set": "set('a','b','c')",
    "c_json": "json",
    "c_point": "point",
    "c_geometry": "geometry",
}

USUAL = {
    "c_bool": "1",
    "c_tiny": "-7",
    "c_small": "65535",
    "c_medium": "-8388608",
    "c_int": "42",
    "c_int_unsigned": "4294967295",
    "c_bigint": "-9007199254740993",
    "c_bigint_unsigned": "42",
    "c_float": "1.1",
    "c_double": "123456.789",
    "c_decimal": "13.5",
    "c_bit": "b'1'",
    "c_bits": "b'0100000001'",
    "c_date": "'2026-11-21'",
    "c_time": "'-838:59:59'",
    "c_time3": "'03:10:02.5'",
    "c_datetime": "'2026-11-21 03:10:02'",
    "c_datetime6": "'2026-11-21 03:10:02.000001'",
    "c_timestamp": "'2026-11-21 03:10:02'",
    "c_timestamp3": "'2026-11-21 03:10:02.25'",
    "c_year": "2026",
    "c_char": "'ab'",
    "c_varchar": "'a \"b\" \\\\ ü 😀\\n'",
    "c_text": "'text'",
    "c_latin": "'é'",
    "c_binary": "x'00ff'",
    "c_varbinary": "x'00ff10'",
    "c_blob": "''",
    "c_enum": "'a,b'",
    "c_set": "'a,c'",
    "c_json": '\'{"b": [1, null, 1.5], "a": "x"}\'',
    "c_point": "ST_GeomFromText('POINT(1 2.5)')",
    "c_geometry": "ST_GeomFromText('LINESTRING(0 0,1 1)')",
}

UNUSUAL = {
    "c_bool": "7",
    "c_bigint_unsigned": "18446744073709551615",
    "c_float": "'-1e-20'",
    "c_double": "1e23",
    "c_decimal": "-0.05",
    "c_bit": "b'0'",
    "c_bits": "b'1'",
    "c_date": "'0000-00-00'",
    "c_time": "'24:00:00'",
    "c_datetime": "'0000-00-00 00:00:00'",
    "c_datetime6": "'9999-12-31 23:59:59.999999'",
    "c_timestamp": "'0000-00-00 00:00:00'",
    "c_year": "0",
    "c_char": "''",
    "c_set": "''",
    "c_json": "'null'",
    "c_geometry": "ST_GeomFromText('POINT(1 2)', 4326)",
}

CHANGES = (
    "UPDATE types SET c_int = 43 WHERE id = 1",
    "DELETE FROM types WHERE id = 2",
    "INSERT INTO small VALUES (2, 'two', 2, NULL)",
    "UPDATE small SET note = 'n' WHERE id = 2",
    "UPDATE small SET id = 3 WHERE id = 2",
    "DELETE FROM small WHERE id = 3",
    "TRUNCATE small",
    "ALTER TABLE small ADD COLUMN more int",
    "INSERT INTO small VALUES (4, 'four', 4, NULL, 9)",
    "INSERT INTO done VALUES (1)",
)

CONNECTOR = {
    "skipped.operations": "none",
    "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
    "database.include.list": DATABASE,
    "database.user": "root",
    "database.password": "",
}

FORMS: Mapping[str, Mapping[str, str]] = {
    "schema": {**WITH_SCHEMA, "provide.transaction.metadata": "true"},
    "plain": WITHOUT_SCHEMA,
    "other": {
        **WITH_SCHEMA,
        "time.precision.mode": "connect",
        "decimal.handling.mode": "string",
        "bigint.unsigned.handling.mode": "precise",
        "binary.handling.mode": "hex",
    },
    "iso": {**WITH_SCHEMA, "time.precision.mode": "isostring", "decimal.handling.mode": "double"},
    "rewrite": {
        **UNWRAP,
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": "op,db,table,source.ts_us,gtid,source.connector",
    },
}


@contextmanager
def captured(name: str) -> Iterator[Source]:
    """Runs the server `name`, with filled tables, until the `with` block ends."""
    flavour: Flavour = "mysql" if name == "mysql" else "mariadb"
    columns, usual = COLUMNS, {**USUAL}
    if flavour == "mariadb":
        usual["c_point"], usual["c_geometry"] = (
            of.replace("ST_", "") for of in (usual["c_point"], usual["c_geometry"])
        )
    unusual = {**usual, **UNUSUAL}
    if flavour == "mariadb":
        unusual["c_year"] = "1901"  # the driver of MariaDB cannot read the year 0
        unusual["c_geometry"] = "GeomFromText('POINT(1 2)', 4326)"
    with temporary_server(flavour) as server:
        with server.connect() as session, session.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
            cursor.execute(f"USE {DATABASE}")
            cursor.execute("SET sql_mode = ''")
            listed = ", ".join(f"{column} {of}" for column, of in columns.items())
            cursor.execute(f"CREATE TABLE types (id int PRIMARY KEY, {listed})")
            cursor.execute("CREATE TABLE small (id int PRIMARY KEY, name text NOT NULL, n int, note text)")
            cursor.execute("CREATE TABLE done (id int PRIMARY KEY)")
            for number, values in enumerate((usual, {}, unusual), 1):
                names, expressions = ["id", *values], [str(number), *values.values()]
                cursor.execute(f"INSERT INTO types ({','.join(names)}) VALUES ({','.join(expressions)})")
            session.commit()
        parameters = {
            **CONNECTOR,
            **MYSQL_CONNECTORS[flavour],
            "database.hostname": server.host,
            "database.port": str(server.port),
        }
        yield Source(
            jars=f"debezium-{flavour}",
            schema=DATABASE,
            snapshot="types",
            connectors={
                form: {
                    **parameters,
                    **properties,
                    "topic.prefix": form,
                    "database.server.id": str(7000 + number),
                    "schema.history.internal.file.filename": f"{server.data_dir}/../history-{form}",
                }
                for number, (form, properties) in enumerate(FORMS.items())
            },
            change=lambda: _change(server),
            published=_published(server, flavour),
        )


def _change(server: MysqlServer) -> None:
    with server.connect(DATABASE) as session, session.cursor() as cursor:
        for change in CHANGES:
            cursor.execute(change)
            session.commit()


def _published(server: MysqlServer, flavour: Flavour) -> Mapping[str, Any]:
    """Returns what our reader publishes for the table `types`: for each id, the JSON of each column's value."""
    with server.connect() as connection, connection.cursor() as cursor:

        def query(sql: str, parameters: Any) -> Any:
            cursor.execute(sql, parameters)
            return cursor.fetchall()

        collations = dict(query(COLLATIONS[FLAVOURS[flavour]], ()))
        (table,) = [of for of in read_tables(query) if of.name == "types"]
        declared = {column.name: column.declared for column in table.columns}
        condition = "TABLE_SCHEMA = %s AND TABLE_NAME = 'types' ORDER BY ORDINAL_POSITION"
        listed = query(f"SELECT {FIELDS} FROM information_schema.COLUMNS WHERE {condition}", (DATABASE,))
    columns = [
        column_of(CatalogColumn(*fields)._replace(column_type=declared[fields[0]]), collations) for fields in listed
    ]
    with (
        pymysql.connect(
            host=server.host, port=server.port, user="root", database=DATABASE, use_unicode=False, conv=ENCODERS
        ) as connection,
        connection.cursor() as cursor,
    ):
        for setting in SETTINGS:
            cursor.execute(setting)
        expressions = [selected(column) for column in columns]
        cursor.execute(f"SELECT {', '.join(of.sql for of in expressions)} FROM types ORDER BY id")
        rows = {}
        for row in cursor.fetchall():
            texts = [
                None if value is None else of.convert(value) if of.convert else value
                for of, value in zip(expressions, row, strict=True)
            ]
            tokens = {
                column.name: None if text is None else codec_for(column).to_json(text).decode()
                for column, text in zip(columns, texts, strict=True)
            }
            rows[str(tokens["id"])] = tokens
        return rows
