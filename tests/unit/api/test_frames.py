"""Tests that pandas, polars and DuckDB accept the Arrow tables that `ChangelogReader.table` returns."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from changelog.schemas.types import Array, ColumnType, Map, Primitive, Struct
from changelog.schemas.types import Decimal as DecimalType
from tests.unit.api.shop import created, shop

COLUMNS: Mapping[str, ColumnType] = {
    "id": Primitive.LONG,
    "amount": DecimalType(precision=12, scale=2),
    "paid_at": Primitive.TIMESTAMP_TZ,
    "tags": Array(element=Primitive.STRING),
    "labels": Map(value=Primitive.STRING),
    "pair": Struct(fields=(("n", Primitive.INT), ("on", Primitive.DATE))),
    "blob": Primitive.BYTES,
}
STATE = (
    '{"id":%d,"amount":"%d.50","paid_at":"2026-11-21T03:10:02.500000Z","tags":["a",null],"labels":{"x":"1"},'
    '"pair":{"n":1,"on":null},"blob":"AP8Q"}'
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    orders = [created("order", STATE % (number, number), key=str(number), commit=number) for number in (1, 2, 3)]
    return shop(tmp_path_factory.mktemp("shop"), [orders], order=COLUMNS).table("order").sort_by("id")


def test_pandas_takes_the_table(table: pa.Table) -> None:
    frame = table.to_pandas()
    assert list(frame.columns) == table.schema.names
    assert frame["amount"].sum() == Decimal("7.50")
    assert frame["paid_at"].dt.year.tolist() == [2026] * 3
    assert frame["_service_name"].value_counts().to_dict() == {"order-api": 3}


def test_polars_takes_the_table(table: pa.Table) -> None:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    assert frame.columns == table.schema.names
    assert frame["amount"].sum() == Decimal("7.50")
    assert frame["tags"].to_list() == [["a", None]] * 3
    assert frame["pair"].struct.field("n").to_list() == [1, 1, 1]


def test_duckdb_queries_the_table(table: pa.Table) -> None:
    with duckdb.connect() as connection:
        connection.register("orders", table)
        query = "SELECT sum(amount), min(paid_at), max(tags[1]), any_value(labels['x']), any_value(pair.n) FROM orders"
        (row,) = connection.execute(query).fetchall()
    assert (row[0], row[1].isoformat()[:19], *row[2:]) == (Decimal("7.50"), "2026-11-21T03:10:02", "a", "1", 1)


def test_tables_can_be_stored_as_parquet(table: pa.Table, tmp_path: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("orders", table)
        connection.execute(f"COPY orders TO '{tmp_path}/orders.parquet' (FORMAT parquet)")
        assert connection.execute(f"SELECT count(*) FROM '{tmp_path}/orders.parquet'").fetchone() == (3,)
