"""Tests that `changelog views serve` and Spark agree on the rows for which the condition of a view is true."""

import itertools
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the usual alias

from changelog.connectors.views.condition.judge import judge
from changelog.connectors.views.condition.parse import parse
from changelog.envelope.states.json_values import NULL, reader
from changelog.schemas.types import ColumnType, Decimal, Primitive, Struct
from changelog.spark_jobs.reading.spark_types import of_shape

COLUMNS: Mapping[str, ColumnType] = {
    "small": Primitive.INT,
    "id": Primitive.LONG,
    "amount": Decimal(precision=12, scale=2),
    "ratio": Primitive.DOUBLE,
    "part": Primitive.FLOAT,
    "status": Primitive.STRING,
    "code": Primitive.UUID,
    "clock": Primitive.TIME,
    "paid": Primitive.BOOLEAN,
    "day": Primitive.DATE,
    "`odd name`": Primitive.STRING,
}
TOKENS: Mapping[str, tuple[str, ...]] = {
    "small": ("0", "-7", "2147483647"),
    "id": ("9007199254740993", "9007199254740992", "-1"),
    "amount": ('"10.10"', '"0.00"', '"-9999999999.99"'),
    "ratio": ('"NaN"', "0.1", "-0.0", '"Infinity"', "9007199254740992"),
    "part": ("0.1", '"NaN"', "16777217"),
    "status": ('"PAID"', '"paid"', '""', '"\\ud83d\\ude00"', '"\\uffff"', '"PAID "'),
    "code": ('"00000000-0000-0000-0000-00000000000a"',),
    "clock": ('"03:10:02.5"',),
    "paid": ("true", "false"),
    "day": ('"2026-11-21"', '"0001-01-01"'),
    "`odd name`": ('"x"',),
}
LITERALS: Mapping[str, tuple[str, ...]] = {
    "small": ("0", "-7", "0.5", "99999999999"),
    "id": ("9007199254740993", "9007199254740992.0", "9223372036854775807"),
    "amount": ("10.1", "10.10", "10.101", "0", "-9999999999.99"),
    "ratio": ("0.1", "0", "9007199254740993"),
    "part": ("0.1", "16777217", "0.5"),
    "status": ("'PAID'", '"paid"', "''", "'\U0001f600'", "'\uffff'", "'Z'"),
    "code": ("'00000000-0000-0000-0000-00000000000A'", "'00000000-0000-0000-0000-00000000000a'"),
    "clock": ("'03:10:02.5'", "'3'"),
    "paid": ("TRUE", "false"),
    "day": ("'2026-11-21'", "'2026-11-22'"),
    "`odd name`": ("'x'",),
}


def conditions() -> list[str]:
    """Returns simple conditions about every column, and combinations of a few conditions."""
    simple = [
        f"{column} {sign} {value}"
        for column, values in LITERALS.items()
        for sign, value in itertools.product(("=", "<>", "<", ">="), values)
    ]
    sets = [
        f"{column} {word} ({', '.join(values)})" for column, values in LITERALS.items() for word in ("IN", "NOT IN")
    ]
    nulls = [f"{column} IS {word}NULL" for column in COLUMNS for word in ("", "NOT ")]
    parts = ["id > 0", "status = 'PAID'", "NOT paid = TRUE", "amount IS NULL"]
    words = itertools.product(("AND", "OR"), repeat=2)
    joined = [
        f"{a} {first} {b} {second} NOT ({c})"
        for (first, second), (a, b, c) in itertools.product(words, itertools.permutations(parts, 3))
    ]
    return [*simple, *sets, *nulls, *joined]


def test_conditions_hold_as_in_spark(spark: SparkSession) -> None:
    names = [name.strip("`") for name in COLUMNS]
    shape = Struct(fields=tuple(zip(names, COLUMNS.values(), strict=True)))
    length = max(map(len, TOKENS.values()))
    rows = [
        {name: tokens[n % len(tokens)].encode() for name, tokens in zip(names, TOKENS.values(), strict=True)}
        for n in range(length)
    ]
    rows += [{**row, **dict.fromkeys(names[n % 2 :: 2], NULL)} for n, row in enumerate(rows)]
    readers = [reader(type_) for type_ in COLUMNS.values()]
    values = [
        tuple(None if row[name] == NULL else read(row[name]) for name, read in zip(names, readers, strict=True))
        for row in rows
    ]
    texts = conditions()
    frame = spark.createDataFrame(values, of_shape(shape)).coalesce(1)
    results = frame.select(*(F.expr(text).alias(f"c{n}") for n, text in enumerate(texts))).collect()
    for row, result in zip(rows, results, strict=True):
        ours = {text: judge(parse(text), shape)(row) for text in texts}
        assert ours == dict(zip(texts, result, strict=True))
