"""Divides the rows of a block into spans: runs of rows of one transaction with the same stamp (who made the change).

A block is a stretch of the log that is decoded at once. Its rows are numbered from 0. This number is called the row's
place. The ordinal of a row is the number of rows and messages (such as stamps) that the log has before it in the same
transaction. A row is published as one or two records. The *position ordinal* of a record is the last part of its
position: twice the row's ordinal, plus 1 for the second record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.envelope.model import Stamp

Ints = npt.NDArray[np.int64]


class Span(msgspec.Struct, kw_only=True, gc=False):
    """Consecutive rows of one transaction with the same stamp; `rows` is how many there are.

    The assembly adds rows to its last span until the span is encoded. A log of small transactions has a span for each
    row. So a span is a msgspec struct; a dataclass would take about ten times as long to make.

    The first row has the ordinal `ordinal`, and each further row has the next one. `published` says how much of the
    transaction is in the changelog already: it is the position ordinal of the last published record, or -1 if nothing
    was published.
    """

    transaction: Transaction
    stamp: Stamp | None
    ordinal: int
    rows: int
    published: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanColumns:
    """Many spans as arrays: one array for each member of `Span` and `Transaction`, with one element for each span.

    `stamps` is None if no span has a stamp.
    """

    xids: Ints
    names: pa.StringArray
    epochs: Ints
    commits: Ints
    committed_at: Ints
    ordinals: Ints
    rows: Ints
    published: Ints
    stamps: Sequence[Stamp | None] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Self:
        """Returns the same spans as columns."""
        transactions = [span.transaction for span in spans]
        xids, names, epochs, commits, committed_at = zip(*transactions, strict=True)
        return cls(
            xids=np.array(xids, np.int64),
            names=pa.array(names, pa.utf8()),
            epochs=np.array(epochs, np.int64),
            commits=np.array(commits, np.int64),
            committed_at=np.array(committed_at, np.int64),
            ordinals=np.array([span.ordinal for span in spans], np.int64),
            rows=np.array([span.rows for span in spans], np.int64),
            published=np.array([span.published for span in spans], np.int64),
            stamps=[span.stamp for span in spans],
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Returns all spans of the parts. There must be at least one part."""
        if len(parts) == 1:
            return parts[0]
        arrays = {
            field.name: np.concatenate([getattr(part, field.name) for part in parts])
            for field in fields(cls)
            if field.name not in ("names", "stamps")
        }
        return cls(
            names=pa.concat_arrays([part.names for part in parts]),
            stamps=[stamp for part in parts for stamp in part.stamps or [None] * len(part)],
            **arrays,
        )

    def with_rows(self) -> "SpanColumns":
        """Returns the spans that have rows."""
        if self.rows.all():
            return self
        index = np.flatnonzero(self.rows)
        arrays = {
            field.name: getattr(self, field.name)[index]
            for field in fields(self)
            if field.name not in ("names", "stamps")
        }
        stamps = None if self.stamps is None else [self.stamps[number] for number in index.tolist()]
        return SpanColumns(names=self.names.take(pa.array(index)), stamps=stamps, **arrays)

    def transaction(self, number: int) -> Transaction:
        """Returns the transaction of the span with this number."""
        return Transaction(
            xid=int(self.xids[number]),
            name=self.names[number].as_py(),
            epoch=int(self.epochs[number]),
            commit=int(self.commits[number]),
            committed_at=int(self.committed_at[number]),
        )

    def stamp(self, number: int) -> Stamp | None:
        """Returns the stamp of the span with this number."""
        return None if self.stamps is None else self.stamps[number]


Spans = Sequence[Span | SpanColumns]
"""The spans of a block, in order."""


def parted(spans: Spans, count: int) -> tuple[list[Span | SpanColumns], list[Span]]:
    """Splits off the last `count` rows. All of them must be in the last span, and that span must be a `Span`.

    Returns the spans of the earlier rows, and a list with the one span of the last `count` rows. This list is empty if
    `count` is 0.
    """
    if not count:
        return [*spans], []
    *earlier, last = spans
    assert isinstance(last, Span)
    rows_before = last.rows - count
    split_off = [msgspec.structs.replace(last, ordinal=last.ordinal + rows_before, rows=count)]
    return [*earlier, msgspec.structs.replace(last, rows=rows_before)] if rows_before else earlier, split_off


class Meta:
    """What the spans of a block say about each of its rows: arrays with one element for each row.

    - `spans`: the number of the row's span in `columns`.
    - `ordinals`: the row's ordinal.
    - `published`: how much of the row's transaction was published already; see `Span`.
    - `commits`: the member `commit` of the row's transaction.
    - `stamped`: whether the row has a stamp.
    """

    def __init__(self, spans: Spans) -> None:
        self.columns = columns = SpanColumns.joined(
            [
                part
                for is_span, group in groupby(spans, key=lambda span: isinstance(span, Span))
                for part in (
                    [SpanColumns.of([span for span in group if isinstance(span, Span)])]
                    if is_span
                    else [span for span in group if isinstance(span, SpanColumns)]
                )
            ]
        )
        self.spans: Ints = np.repeat(np.arange(len(columns)), columns.rows)
        begins = np.cumsum(columns.rows) - columns.rows
        self.ordinals: Ints = np.arange(len(self.spans)) + (columns.ordinals - begins)[self.spans]
        self.published = columns.published[self.spans]
        self.commits = columns.commits[self.spans]
        self.stamped: npt.NDArray[np.bool_] = (
            np.zeros(len(self.spans), bool)
            if columns.stamps is None
            else np.array([stamp is not None for stamp in columns.stamps], bool)[self.spans]
        )

    def change(self, place: int) -> Change:
        """Returns the transaction, the ordinal and the stamp of the row with the number `place`."""
        span = int(self.spans[place])
        return Change(
            transaction=self.columns.transaction(span),
            ordinal=int(self.ordinals[place]),
            stamp=self.columns.stamp(span),
        )

    def xids(self, places: Ints) -> Ints:
        """Returns the 64-bit transaction ids of the rows with the numbers `places`."""
        return self.columns.xids[self.spans[places]]
