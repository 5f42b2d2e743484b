"""Copies tables into files, so that other processes can read the rows after the snapshot has ended.

In these files, a row has the same JSON text as in a message.
"""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from changelog.connectors.capture.rows import row_records
from changelog.connectors.capture.rows.row_records import Change, Origin, Transaction
from changelog.connectors.capture.tables.chunk_rows import ChunkRows
from changelog.connectors.sources.fences import ROWS
from changelog.connectors.sources.mysql.scan import locators
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot.read_table import ReadTable

_PORTION_ROWS = 20_000
_PORTION_BYTES = 8 << 20
"""The rows are encoded in portions, and each portion becomes one row group. A portion ends once it has this many rows,
or this many bytes.
"""

_NOWHERE = Change(transaction=Transaction(xid=0, name="0", epoch=0, commit=0, committed_at=0), ordinal=0, stamp=None)
_ORIGIN = Origin(connector="mysql", name="", database="")


def copy_table(connection: Connection, table: ReadTable, file: Path) -> int:
    """Writes the rows that the connection's snapshot sees to a Parquet file; returns how many row groups the file has.

    Raises ChangelogError.
    """
    groups = 0
    with pq.ParquetWriter(file, ROWS, compression="zstd") as writer:
        for rows in table.portions(connection, _ORIGIN, rows_max=_PORTION_ROWS, bytes_max=_PORTION_BYTES):
            writer.write_batch(_encoded(rows, groups))
            groups += 1
    return groups


def _encoded(rows: ChunkRows, group: int) -> pa.RecordBatch:
    unusual = [_one(rows, values) for values in rows.unusual]
    keys, usual = rows.keys, rows.texts.current
    count = len(keys)
    current = pa.array([text for text, _ in unusual], pa.utf8())
    json_null = pa.array([names for _, names in unusual], pa.utf8())
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(rows.bound.binding.entity.name, count),
            keys,
            current if usual is None else pa.concat_arrays([usual, current]),
            pa.concat_arrays([pa.nulls(rows.texts.size, pa.utf8()), json_null]),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            locators(group, count),
        ],
        schema=ROWS,
    )


def _one(rows: ChunkRows, values: row_records.Tuple) -> tuple[str, str | None]:
    """Encodes an unusual row with `row_records`; returns its `current` and `json_null` (see `ROWS`)."""
    envelope = row_records.read(_ORIGIN, rows.bound.binding, values, _NOWHERE).envelope
    assert isinstance(envelope.current, msgspec.Raw)
    names = envelope.provenance.source.json_null
    return bytes(envelope.current).decode(), msgspec.json.encode(names).decode() if names else None
