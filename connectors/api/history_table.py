"""Makes an Arrow table of the changes of one key."""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from msgspec import Raw

from changelog.envelope.delta.patch_text import patch_text
from changelog.envelope.entity import TRUNCATE_KEY
from changelog.envelope.model import Envelope, Missing, Op, Record, Source

HISTORY: Final = pa.schema(
    [
        pa.field("position", pa.utf8()),
        pa.field("committed_at", pa.timestamp("us", tz="UTC")),
        pa.field("op", pa.utf8()),
        pa.field("key", pa.utf8()),
        pa.field("service_name", pa.utf8()),
        pa.field("api_version", pa.utf8()),
        pa.field("identifier", pa.utf8()),
        pa.field("context", pa.utf8()),
        pa.field("transaction", pa.utf8()),
        pa.field("current", pa.utf8()),
        pa.field("original", pa.utf8()),
        pa.field("patch", pa.utf8()),
    ]
)
"""The columns of a history. `context`, `current`, `original` and `patch` are JSON text; null if there is none. A
truncate has a null `key`."""


def history_table(records: Iterable[Record]) -> pa.Table:
    """Returns the changes as a table with the columns `HISTORY`, in the same order."""
    return pa.Table.from_pylist([_row(record) for record in records], schema=HISTORY)


def _row(record: Record) -> dict[str, object]:
    envelope = record.envelope
    stamp, source = envelope.provenance.stamp, envelope.provenance.source
    return {
        "position": str(source.position),
        "committed_at": source.committed_at,
        "op": source.op.value,
        "key": None if record.place.key == TRUNCATE_KEY else record.place.key,
        "service_name": stamp.service_name,
        "api_version": stamp.api_version,
        "identifier": stamp.identifier,
        "context": stamp.context,
        "transaction": source.transaction,
        "current": _text(envelope.current),
        "original": _text(envelope.original),
        "patch": _patch(envelope, source),
    }


def _patch(envelope: Envelope, source: Source) -> str | None:
    """Returns the JSON Patch of an update whose states are both known; None for any other change."""
    current, original = envelope.current, envelope.original
    if source.op is not Op.UPDATE or current is None or isinstance(original, Missing | None):
        return None
    patch = patch_text(
        Op.UPDATE,
        bytes(current),
        bytes(original),
        unavailable=frozenset({*source.unavailable, *source.unavailable_original}),
        unavailable_original=bool(source.unavailable_original),
    )
    return patch.decode()


def _text(state: Raw | Missing | None) -> str | None:
    return None if isinstance(state, Missing | None) else bytes(state).decode()
