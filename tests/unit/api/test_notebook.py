"""Tests that the code on the documentation page about notebooks runs, and prints what the page shows."""

import ast
import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from changelog.envelope.model import MISSING, Op, Record, Stamp
from changelog.schemas.types import ColumnType, Decimal, Primitive
from tests.unit.api.shop import shop
from tests.unit.records import record

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "notebook.md"
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
ORDER: Mapping[str, ColumnType] = {
    "id": Primitive.INT,
    "status": Primitive.STRING,
    "amount": Decimal(precision=12, scale=2),
}
CUSTOMER: Mapping[str, ColumnType] = {"id": Primitive.INT, "country": Primitive.STRING}
CONFIGURATION = """
name = "shop"
source = { kind = "postgres", dsn = "host=db" }
sink = { path = "log" }
tables = { include = ["public.*"] }
"""


def order(number: int, status: str, amount: str) -> str:
    return f'{{"id":{number},"status":"{status}","amount":"{amount}"}}'


def shop_changes() -> Iterator[Record]:
    """Yields the changes of the shop. The last argument of `change` is the second of its commit: changes with the same
    second belong to one transaction.
    """
    yield change("customer", 7, None, '{"id":7,"country":"DE"}', "shop-web", "req-100", 1)
    yield change("order", 42, None, order(42, "NEW", "99.00"), "shop-web", "req-101", 1)
    yield change("order", 42, order(42, "NEW", "99.00"), order(42, "PAID", "99.00"), "payments", "req-102", 2)
    yield change("customer", 8, None, '{"id":8,"country":"FR"}', "shop-web", "req-103", 2)
    yield change("order", 41, None, order(41, "PAID", "13.50"), "shop-web", "req-103", 2)
    yield change("order", 44, None, order(44, "NEW", "1.00"), "shop-web", "req-104", 2)
    yield change("order", 42, order(42, "PAID", "99.00"), order(42, "PAID", "90.00"), "pricing", "batch-2026", 3)
    yield change("order", 41, order(41, "PAID", "13.50"), order(41, "SHIPPED", "13.50"), "warehouse", "req-105", 4)
    yield change("order", 43, None, order(43, "NEW", "5.00"), "shop-web", "req-106", 5)
    yield change("order", 44, order(44, "NEW", "1.00"), None, "shop-web", "req-107", 6)


def change(
    entity: str, key: int, original: str | None, current: str | None, service: str, identifier: str, second: int
) -> Record:
    op = Op.CREATE if original is None else Op.DELETE if current is None else Op.UPDATE
    row = record(op, current, entity=entity, key=str(key), commit=second)
    stamp = Stamp(api_version="v2", service_name=service, identifier=identifier)
    provenance = replace(row.envelope.provenance, stamp=stamp)
    before = MISSING if original is None else Raw(original)
    return replace(row, envelope=replace(row.envelope, original=before, provenance=provenance))


def numbered(records: Iterator[Record]) -> list[Record]:
    """Gives the changes of each transaction the ordinals 0, 2, 4 and so on."""
    numbers: dict[int, int] = {}
    result = []
    for row in records:
        source = row.envelope.provenance.source
        numbers[source.position.commit] = ordinal = numbers.get(source.position.commit, -2) + 2
        provenance = replace(
            row.envelope.provenance,
            source=replace(source, position=replace(source.position, ordinal=ordinal)),
        )
        result.append(replace(row, envelope=replace(row.envelope, provenance=provenance)))
    return result


def output(code: str, names: dict[str, Any]) -> str:
    """Runs a cell as a notebook does. Returns what it prints. If the last line is an expression, adds its value."""
    tree = ast.parse(code)
    last = tree.body[-1]
    expression = ast.Expression(last.value) if isinstance(last, ast.Expr) else None
    if expression is not None:
        del tree.body[-1]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, PAGE, "exec"), names)
        value = None if expression is None else eval(compile(expression, PAGE, "eval"), names)
    return printed.getvalue() + ("" if value is None else f"{value!r}\n")


def test_the_code_on_the_page_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(tmp_path / "log", [numbered(shop_changes())], order=ORDER, customer=CUSTOMER)
    (tmp_path / "changelog.toml").write_text(CONFIGURATION, "utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    cells = [(code, shown or "") for code, shown in BLOCK.findall(PAGE.read_text("utf-8"))]
    assert len(cells) == 9
    assert [output(code, names) for code, _ in cells] == [shown for _, shown in cells]
