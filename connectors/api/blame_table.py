"""Makes an Arrow table that says who set each attribute of a row."""

from typing import Final

import pyarrow as pa
from msgspec import Raw

from changelog.envelope.blame import Attribute, Blame
from changelog.envelope.model import Missing

BLAME: Final = pa.schema(
    [
        pa.field("path", pa.utf8()),
        pa.field("value", pa.utf8()),
        pa.field("before", pa.utf8()),
        pa.field("existed", pa.bool_()),
        pa.field("service_name", pa.utf8()),
        pa.field("api_version", pa.utf8()),
        pa.field("identifier", pa.utf8()),
        pa.field("context", pa.utf8()),
        pa.field("op", pa.utf8()),
        pa.field("position", pa.utf8()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("transaction", pa.utf8()),
    ]
)
"""The columns of the table, which has a row for each attribute. `path` is a JSON Pointer (RFC 6901). `value` is the
attribute's JSON text. The other columns describe the change that set this value. `before` is the attribute's JSON text
before this change, and `existed` says whether the attribute existed before it (null if that is unknown)."""


def blame_table(blame: Blame) -> pa.Table:
    """Returns the attributes as a table with the columns `BLAME`, in the order in which the row has them."""
    return pa.Table.from_pylist([_row(attribute) for attribute in blame.attributes], schema=BLAME)


def _row(attribute: Attribute) -> dict[str, object]:
    writer = attribute.writer
    stamp = writer.stamp
    return {
        "path": attribute.pointer,
        "value": _text(attribute.value),
        "before": _text(attribute.before),
        "existed": attribute.existed,
        "service_name": None if stamp is None else stamp.service_name,
        "api_version": None if stamp is None else stamp.api_version,
        "identifier": None if stamp is None else stamp.identifier,
        "context": None if stamp is None else stamp.context,
        "op": writer.op.value,
        "position": str(writer.position),
        "committed_at": writer.committed_at,
        "transaction": writer.transaction,
    }


def _text(value: Raw | Missing | None) -> str | None:
    return None if isinstance(value, Missing | None) else bytes(value).decode()
