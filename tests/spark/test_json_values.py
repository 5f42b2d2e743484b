"""Tests that each JSON value is either converted exactly to Spark's value of its type, or refused."""

import datetime as dt
import math
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from changelog.envelope.states.json_values import reader
from changelog.schemas.avro import Column
from changelog.schemas.types import Array, ColumnType, Decimal, Map, Primitive, Struct
from changelog.spark_jobs.reading.spark_types import of_columns

P = Primitive
MONEY = Decimal(precision=32, scale=2)
PAIR = Struct(fields=(("n", P.INT), ("at", P.DATE)))


def arrow(type_: ColumnType) -> pa.DataType:
    return to_arrow_type(of_columns([Column(name="a", type=type_, nullable=True)])["a"].dataType)


@pytest.mark.parametrize(
    ("type_", "token", "value"),
    [
        (P.BOOLEAN, "true", True),
        (P.INT, "-2147483648", -(2**31)),
        (P.LONG, "9223372036854775807", 2**63 - 1),
        (P.DOUBLE, "1e+20", 1e20),
        (P.DOUBLE, "5e-324", 5e-324),
        (P.FLOAT, "3.4028235e+38", 3.4028234663852886e38),
        (P.DOUBLE, '"-Infinity"', -math.inf),
        (MONEY, '"123456789012345678901234567890.10"', Number("123456789012345678901234567890.10")),
        (MONEY, '"-0.00"', Number("-0.00")),
        (Decimal(precision=39, scale=0), '"' + "9" * 39 + '"', "9" * 39),
        (P.STRING, '"a\\n\\u00e9"', "a\né"),
        (P.STRING, "12.50", "12.50"),
        (P.BYTES, '"AP8Q"', b"\x00\xff\x10"),
        (P.DATE, '"0001-01-01"', dt.date(1, 1, 1)),
        (P.TIME, '"24:00:00"', "24:00:00"),
        (P.TIMESTAMP, '"2026-11-21T03:10:02.500000"', dt.datetime(2026, 11, 21, 3, 10, 2, 500000)),  # noqa: DTZ001
        (
            P.TIMESTAMP_TZ,
            '"9999-12-31T23:59:59.999999Z"',
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        ),
        (P.JSON, '{"b": 1e+20,"a":-0, "c":"\\ud800"}', '{"b": 1e+20,"a":-0, "c":"\\ud800"}'),
        (Array(element=P.INT), "[1,null,3]", [1, None, 3]),
        (Array(element=P.JSON), '["\\ud800"]', ['"\\ud800"']),
        (Map(value=P.STRING), '{"a":"1","b":null}', [("a", "1"), ("b", None)]),
        (PAIR, '{"n":1,"at":null}', {"n": 1, "at": None}),
        (Array(element=PAIR), '[{"n":1,"at":"2026-11-21"}]', [{"n": 1, "at": dt.date(2026, 11, 21)}]),
    ],
)
def test_values_that_fit_their_type_are_converted(type_: ColumnType, token: str, value: Any) -> None:
    result = reader(type_)(token.encode())
    assert result == value
    assert pa.array([result, None], arrow(type_)).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("type_", "token"),
    [
        (P.BOOLEAN, '"t"'),
        (P.INT, "2147483648"),
        (P.LONG, "9223372036854775808"),
        (P.LONG, "1.0"),
        (P.LONG, '"1"'),
        (P.FLOAT, "3.5e+38"),
        (P.DOUBLE, "1e400"),
        (P.DOUBLE, '"1"'),
        (MONEY, '"NaN"'),
        (MONEY, '"1.005"'),
        (MONEY, '"1' + "0" * 30 + '.00"'),
        (MONEY, '"1_0"'),
        (P.BYTES, '"A"'),
        (P.DATE, '"infinity"'),
        (P.DATE, '"0044-03-15 BC"'),
        (P.DATE, '"20261121"'),
        (P.TIMESTAMP, '"10000-01-01 00:00:00"'),
        (P.TIMESTAMP, '"2026-11-21T03:10:02.500000Z"'),
        (P.TIMESTAMP_TZ, '"infinity"'),
        (Array(element=P.INT), '"[0:1]={1,2}"'),
        (Array(element=P.INT), "[[1],[2]]"),
        (Array(element=P.DATE), '["infinity"]'),
        (PAIR, '{"n":1}'),
        (PAIR, '"(1,)"'),
        (Map(value=P.STRING), "[]"),
    ],
)
def test_values_that_do_not_fit_their_type_are_refused(type_: ColumnType, token: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        reader(type_)(token.encode())


@given(st.floats())
def test_doubles_come_back_bit_by_bit(number: float) -> None:
    names = {math.inf: '"Infinity"', -math.inf: '"-Infinity"'}
    token = '"NaN"' if math.isnan(number) else names.get(number, repr(number))
    result = reader(P.DOUBLE)(token.encode())
    assert math.isnan(number) if math.isnan(result) else result.hex() == number.hex()  # type: ignore[attr-defined, arg-type]


def test_minus_zero_keeps_its_sign() -> None:
    for type_ in (P.FLOAT, P.DOUBLE):
        (result,) = pa.array([reader(type_)(b"-0")], arrow(type_)).to_pylist()
        assert math.copysign(1, result) == -1
