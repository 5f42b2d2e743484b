"""Drift planted behind a service's back: rows of the file log's own copy are altered, lost or made up."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from changelog.connectors.sinks.files.layout import log_file, sequences
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.entity import TRUNCATE_KEY

Row = dict[str, Any]
Edit = Callable[[Row], Iterable[Row]]
"""What becomes of a row of the log: none, itself, another, several."""


def rewrite(log: Path, edits: Mapping[tuple[str, str], Edit]) -> None:
    """Applies the edits, by entity and key, to all rows of these keys; files are replaced as they are, footer and all.

    The service never looks at what it has written.
    """
    wanted = pa.array({entity for entity, _ in edits})
    for sequence in sequences(log):
        file = log_file(log, sequence)
        with pq.ParquetFile(file) as parquet:
            if not pc.any(pc.is_in(parquet.read(["entity"]).column(0), wanted)).as_py():
                continue
            metadata = {
                name: value for name, value in parquet.metadata.metadata.items() if name.startswith(b"changelog.")
            }
            rows = parquet.read().to_pylist()
        made: list[Row] = []
        for row in rows:
            edit = edits.get((row["entity"], row["key"]))
            made += [row] if edit is None else edit(row)
        beside = file.with_name("beside")
        with pq.ParquetWriter(beside, SCHEMA, store_schema=False, write_page_checksum=True) as writer:
            writer.write_table(pa.Table.from_pylist(made, schema=SCHEMA))
            writer.add_key_value_metadata(metadata)
        beside.replace(file)


def latest(log: Path, entity: str) -> dict[tuple[str, str], Row]:
    """The last row of each key of an entity."""
    found: dict[tuple[str, str], Row] = {}
    for sequence in sequences(log):
        with pq.ParquetFile(log_file(log, sequence)) as parquet:
            rows = parquet.read()
        for row in rows.filter(pc.equal(rows.column("entity"), entity)).to_pylist():
            if row["key"] == TRUNCATE_KEY:
                found.clear()
            else:
                found[entity, row["key"]] = row
    return found


def last_only(position: str, edit: Edit) -> Edit:
    """The edit, of the row at `position` alone."""
    return lambda row: edit(row) if row["position"] == position else [row]


def tokens_of(text: str) -> dict[str, msgspec.Raw]:
    """The members of a JSON object as they are spelt."""
    return msgspec.json.decode(text, type=dict[str, msgspec.Raw])


def setting(values: Mapping[str, str]) -> Edit:
    """Gives columns other values: JSON texts."""

    def edit(row: Row) -> Iterable[Row]:
        tokens = {name: bytes(token).decode() for name, token in tokens_of(row["current"]).items()}
        tokens |= values
        text = ",".join(f"{json.dumps(name)}:{token}" for name, token in tokens.items())
        return [{**row, "current": "{" + text + "}"}]

    return edit


def lost(row: Row) -> Iterable[Row]:
    """The row is gone."""
    return []
