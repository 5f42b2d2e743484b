"""Plants drift, that is, differences between a table and its changelog. For this, the module alters or removes rows in
the files of the changelog, or adds rows that were never published. The service does not notice.
"""

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
"""A function that gets a row of the changelog, and returns the rows that take its place: none, one, or several."""


def rewrite(log: Path, edits: Mapping[tuple[str, str], Edit]) -> None:
    """Applies each edit to all rows of its entity and key. The changelog's metadata in the files stays the same.

    A running service does not notice, because it never reads the files that it has written.
    """
    entities = pa.array({entity for entity, _ in edits})
    for sequence in sequences(log):
        file = log_file(log, sequence)
        with pq.ParquetFile(file) as parquet:
            if not pc.any(pc.is_in(parquet.read(["entity"]).column(0), entities)).as_py():
                continue
            metadata = {
                name: value for name, value in parquet.metadata.metadata.items() if name.startswith(b"changelog.")
            }
            rows = parquet.read().to_pylist()
        edited: list[Row] = []
        for row in rows:
            edit = edits.get((row["entity"], row["key"]))
            edited += [row] if edit is None else edit(row)
        new_file = file.with_name("beside")
        with pq.ParquetWriter(new_file, SCHEMA, store_schema=False, write_page_checksum=True) as writer:
            writer.write_table(pa.Table.from_pylist(edited, schema=SCHEMA))
            writer.add_key_value_metadata(metadata)
        new_file.replace(file)


def latest(log: Path, entity: str) -> dict[tuple[str, str], Row]:
    """The last row of each key of an entity."""
    last_rows: dict[tuple[str, str], Row] = {}
    for sequence in sequences(log):
        with pq.ParquetFile(log_file(log, sequence)) as parquet:
            rows = parquet.read()
        for row in rows.filter(pc.equal(rows.column("entity"), entity)).to_pylist():
            if row["key"] == TRUNCATE_KEY:
                last_rows.clear()
            else:
                last_rows[entity, row["key"]] = row
    return last_rows


def last_only(position: str, edit: Edit) -> Edit:
    """Returns an edit that applies `edit` to the row at `position`, and keeps all other rows."""
    return lambda row: edit(row) if row["position"] == position else [row]


def tokens_of(text: str) -> dict[str, msgspec.Raw]:
    """The members of a JSON object. Each value is the JSON that the text has for it."""
    return msgspec.json.decode(text, type=dict[str, msgspec.Raw])


def setting(values: Mapping[str, str]) -> Edit:
    """Returns an edit that gives columns new values. `values` has the new JSON of each column."""

    def edit(row: Row) -> Iterable[Row]:
        tokens = {name: bytes(token).decode() for name, token in tokens_of(row["current"]).items()}
        tokens |= values
        text = ",".join(f"{json.dumps(name)}:{token}" for name, token in tokens.items())
        return [{**row, "current": "{" + text + "}"}]

    return edit


def lost(row: Row) -> Iterable[Row]:
    """An edit that deletes the row."""
    return []
