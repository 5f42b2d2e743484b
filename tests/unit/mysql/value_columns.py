"""Makes columns for tests that print or convert values."""

from changelog.connectors.sources.mysql.values.columns import LogColumn
from changelog.connectors.sources.mysql.values.type_codes import TypeCode

UTF8MB4 = 255
CHARSETS = {UTF8MB4: "utf8mb4"}


def column(
    type_: TypeCode,
    meta: int = 0,
    *,
    unsigned: bool = False,
    collation: int | None = None,
    labels: tuple[bytes, ...] = (),
    declared: str = "",
) -> LogColumn:
    return LogColumn(
        name="c",
        type=type_,
        meta=meta,
        nullable=True,
        unsigned=unsigned,
        collation=collation,
        labels=labels,
        declared=declared,
    )


def decimal_meta(precision: int, scale: int) -> int:
    return precision | scale << 8


def bit_meta(count: int) -> int:
    return count % 8 | count // 8 << 8
