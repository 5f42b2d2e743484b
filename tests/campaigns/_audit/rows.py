"""Makes rows from the Parquet files of a changelog, or from its messages. It uses no code of the product."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.campaigns._audit.values import State, parsed

TRUNCATE_KEY = "\0truncate"
_RESERVED = {"schemas", "gaps"}
_BATCH_ROWS = 50
_COLUMNS = ["entity", "partition", "key", "op", "position", "transaction", "provenance", "current", "original", "moved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a changelog. If it is one half of a move to another key or partition, `other` is the key of the other
    half.
    """

    entity: str
    partition: int
    key: str
    op: str
    position: str
    transaction: int
    committed: str
    stamp: str
    current: State | None
    original: State | None
    unavailable: Sequence[str] = ()
    unavailable_original: Sequence[str] = ()
    other: str | None = None

    @property
    def commit(self) -> int:
        """Where the commit record of the row's transaction begins in the server's log."""
        return int(self.position.split("/")[1], 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap: the changelog may lack the transactions for which `start` < the end of the commit record <= `end`.

    `last` is the position of the last row before the gap, and `position` is that of the gap itself. If the changelog
    may also have lost rows that were stored before the gap, it has a truncate of each entity in `emptied`. The
    truncates tell consumers to forget the rows of these entities. If `emptied` is None, the audit accepts truncates of
    all entities, or none. `restored` says whether the gap comes from a restore of the database. In this case, positions
    in the server's log occur again after the gap.
    """

    last: str
    position: str
    start: int
    end: int
    entities: tuple[str, ...]
    emptied: frozenset[str] | None = frozenset()
    restored: bool = False


def of_files(path: Path) -> Iterator[Row]:
    """The rows of a file log (a changelog in Parquet files), in the order of the log."""
    for file in _files(path):
        for batch in pq.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS, columns=_COLUMNS):
            for row in batch.to_pylist():
                if row["entity"] not in _RESERVED:
                    envelope = {name: parsed(row[name] or "null") for name in ("provenance", "current", "original")}
                    yield row_of(row, envelope, parsed(row["moved"] or "{}"))


def gaps_of_files(path: Path) -> list[Gap]:
    """The gaps that a file log reports, in the order of the log."""
    tables = (pq.read_table(file, columns=["current"], filters=[("entity", "==", "gaps")]) for file in _files(path))
    return [gap_of(parsed(text)) for table in tables for text in table.column("current").to_pylist()]


def _files(path: Path) -> list[Path]:
    return sorted((path / "log").glob("[0-9]*.parquet"))


def gap_of(state: Mapping[str, Any]) -> Gap:
    """The gap that a row of the entity `gaps` reports. If the checkpoint was lost, `last` is empty and `start` is 0."""
    before, after = state["before"], state["after"]
    start = _place(before["through"]) if before["through"] else 0
    end, entities = _place(after["through"]), tuple(state["entities"])
    return Gap(last=before["position"] or "", position=after["position"], start=start, end=end, entities=entities)


def _place(lsn: str) -> int:
    high, low = lsn.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def row_of(fields: Mapping[str, Any], envelope: Mapping[str, Any], moved: Mapping[str, Any]) -> Row:
    """Makes a row from its envelope, and from the fields that are outside the envelope: in other columns of a file, or
    in the headers of a message.
    """
    provenance = envelope["provenance"]
    source = provenance["source"]
    assert (source["op"], source["position"], source["transaction"]) == (
        fields["op"],
        fields["position"],
        fields["transaction"],
    ), f"the row at {fields['position']}: its fields differ from its envelope"
    end = moved.get("movedTo" if fields["op"] == "delete" else "movedFrom")
    assert (end is None) == (not moved), f"the row at {fields['position']} names the wrong half of a move: {moved}"
    return Row(
        entity=fields["entity"],
        partition=fields["partition"],
        key=fields["key"],
        op=fields["op"],
        position=fields["position"],
        transaction=int(fields["transaction"]),
        committed=source["committedAt"],
        stamp=provenance.get("identifier", ""),
        current=envelope.get("current"),
        original=envelope.get("original"),
        unavailable=source.get("unavailable", ()),
        unavailable_original=source.get("unavailableOriginal", ()),
        other=None if end is None else end["key"],
    )
