"""What a decoder and the assembly hand each other, and what a block of the log gave."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from changelog.connectors.capture.rows.render_rows import Span
from changelog.connectors.capture.rows.row_records import Change, Transaction
from changelog.envelope.errors import ChangelogError
from changelog.envelope.position import Position
from changelog.envelope.versions import Announced

Ints = npt.NDArray[np.int64]


class Listener(Protocol):
    """Table reads that are under way (`windows`), which must know what passes in the log."""

    def touched(self, rows: pa.RecordBatch, xids: Ints) -> None:
        """Rows were delivered, by these transactions."""

    def discard(self, table: tuple[str, str]) -> None:
        """What was read of the table and not yet published no longer holds."""

    def signal(self, payload: bytes, change: Change) -> pa.RecordBatch | None:
        """A signal arrived; the rows that belong at its place."""

    def withdraw(self) -> None:
        """The rows that `signal` gave last are not published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRows:
    """Rows of the changelog in the log's order, each with its commit and transaction id; and a stop that cut it short.

    `rows` carry the shapes of their entities. `unstamped` counts, by entity, changes without a stamp where the policy
    is to warn.
    """

    rows: pa.RecordBatch
    commits: Ints
    xids: Ints
    unstamped: Counter[str]
    stop: ChangelogError | None = None


Encode = Callable[[int, int, Sequence[Span]], EncodedRows]
"""Encodes the rows from the first number up to, and without, the second; rows are counted through a block.

The spans cover exactly these rows. Where a policy stops, the stop is given with the rows before it. Raises
ChangelogError (MALFORMED).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChanges:
    """A table whose columns changed in the log."""

    table: str
    position: Position
    added: tuple[str, ...]
    dropped: tuple[str, ...]
    retyped: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Assembled:
    """What a block gave. `through` is the end of the last whole transaction, None without one.

    Each batch of `rows` carries the shapes of its entities (`changelog.envelope.columnar.batch.shapes`), which no table
    alters inside one. `partial` says that the last row's transaction goes on. `signals` are the messages that may
    be signals, each where it stands. `fenced` says that somebody waits until the checkpoint is stored. `statements`
    are what the log has of statements that change tables, each with its commit; `described` is the last commit before
    which an entity's table was described, because it was altered or for the first time, 0 without one. `first` is the
    first transaction that began, `last` the one that the last row or `through` is of.
    """

    rows: list[pa.RecordBatch] = field(default_factory=list)
    through: str | None = None
    partial: bool = False
    altered: list[ColumnChanges] = field(default_factory=list)
    announced: list[Announced] = field(default_factory=list)
    unstamped: Counter[str] = field(default_factory=Counter)
    invalid_stamps: list[tuple[str, int]] = field(default_factory=list)
    signals: list[tuple[bytes, Change]] = field(default_factory=list)
    fenced: bool = False
    statements: list[tuple[bytes, int]] = field(default_factory=list)
    described: int = 0
    first: Transaction | None = None
    last: Transaction | None = None
