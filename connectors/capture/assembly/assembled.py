"""Defines the types that a decoder, the assembly and its listener (the table reads) exchange.

A block is a stretch of the database's log that is decoded at once. The assembly (`assembly`) turns the rows of a block
into a part of the changelog. The *commit* of a transaction is the place in the log where the transaction commits. It is
also called the commit of the transaction's rows, and it is the second part of their positions.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.connectors.capture.rows.spans import Spans
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.versions import Announced

Ints = npt.NDArray[np.int64]


class Listener(Protocol):
    """The table reads that are under way (`windows`). The assembly reports the events of the log to them."""

    def touched(self, rows: pa.RecordBatch, xids: Ints) -> None:
        """Records that these rows were delivered; `xids` has the transaction id of each row."""

    def discard(self, table: tuple[str, str]) -> None:
        """Discards the rows that were read from the table and are not published yet, because the table changed."""

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        """Handles a message at the place `change` of the log. Returns the rows to publish there, or None."""

    def withdraw(self) -> None:
        """Records that the rows of the last `signal` are not published after all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Rows of the changelog in the log's order, and the commit and the transaction id of each row.

    The metadata of `rows` has the columns of their entities. A stamp says who made a change. `unstamped` counts the
    changes without a stamp, by entity, for the entities whose setting is to warn about such changes. If a policy (a
    setting of an entity) stops the changelog at a row, `stop` is the error, and later rows may be missing.
    """

    rows: pa.RecordBatch
    commits: Ints
    xids: Ints
    unstamped: Counter[str]
    stop: ChangelogError | None = None


Encode = Callable[[int, int, Spans], EncodedRows]
"""Takes two row numbers, `first` and `end`, and spans. Encodes the rows `first` to `end` - 1 of a block.

The rows of a block are numbered from 0. A span is a run of rows with the same transaction and stamp; the spans cover
exactly the rows to encode. If a policy stops the changelog at a row, the result has the stop and the rows before that
row. Raises ChangelogError (MALFORMED) if a row is invalid.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """The names of the columns that were added, dropped or retyped in a table at a position of the log."""

    table: str
    position: Position
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    retyped: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Assembled:
    """The result of assembling a block.

    - `rows`: the rows, in batches. The metadata of each batch has the columns of its entities
      (`changelog.envelope.columnar.batch.shapes`), which are the same for all rows of a batch.
    - `through`: where the last transaction that ended in the block ends; None if none ended.
    - `partial`: whether the last row belongs to a transaction that does not end in the block.
    - `altered`: the changes of the tables' columns. `announced`: the new versions of columns.
    - `unstamped`: as in `EncodedRows`.
    - `invalid_stamps`: the problem of each invalid stamp, and the id of its transaction.
    - `signals`: the messages that may be signals (requests to the service). With each, its place and the number that
      its signature must cover.
    - `fenced`: whether the block has a fence: a message whose sender waits until the checkpoint is stored.
    - `statements`: the statements that change tables, as text, and the commit of each.
    - `described`: the commit of the last transaction in which the log describes an entity's table; 0 if there is none.
      The log describes a table when the table is used for the first time, and after it was altered.
    - `first`: the first transaction that began in the block.
    - `last`: the transaction of the last row, or the one that ends at `through`, whichever is later.
    """

    rows: list[pa.RecordBatch] = field(default_factory=list)
    through: str | None = None
    partial: bool = False
    altered: list[ColumnChanges] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)
    unstamped: Counter[str] = field(default_factory=Counter)
    invalid_stamps: list[tuple[str, int]] = field(default_factory=list)
    signals: list[tuple[bytes, Change, int]] = field(default_factory=list)
    fenced: bool = False
    statements: list[tuple[bytes, int]] = field(default_factory=list)
    described: int = 0
    first: Transaction | None = None
    last: Transaction | None = None
