"""Applies changes to a maintained view, batch after batch."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Final

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.spark_jobs.maintaining.parts import Path, ViewPart
from changelog.spark_jobs.maintaining.progress import REBUILD, Checkpoint, ViewProgress, WaitingChanges
from changelog.spark_jobs.maintaining.target import ArrayStates, StateBatch, ViewTarget
from changelog.spark_jobs.views.transforms import Chosen, folded, in_other_partitions, is_chosen

FORGET_EVERY: Final = timedelta(hours=1)
"""How often a target removes its markers of rows that were deleted long ago."""

_LACKS: Final = "NOT _begun AND size(_unavailable) > 0"
"""The condition that a state lacks values, which may come from the row in the target."""


@dataclass(frozen=True, slots=True)
class _Counts:
    """The states of a part: how many keys were deleted, and how many were not (`rows`). `lacking` is the number of
    states that lack values.
    """

    rows: int
    deleted: int
    lacking: int

    @property
    def is_empty(self) -> bool:
        return not self.rows and not self.deleted


@dataclass(slots=True, kw_only=True)
class MaintainedView:
    """A view in an open target, and its progress.

    The first of `parts` is the view's own rows; the others are the arrays of its documents. `read_parts` returns the
    parts with the columns that the changelog has now. The target keeps a marker for each deleted row, for the time
    `keep_deleted`. `rows`, `deleted` and `batches` count what this run has applied.
    """

    parts: Sequence[ViewPart]
    choice: Chosen
    target: ViewTarget
    progress: ViewProgress
    read_parts: Callable[[], Sequence[ViewPart]]
    keep_deleted: timedelta
    reach: Reach = nowhere
    rows: int = 0
    deleted: int = 0
    batches: int = 0
    _forgotten_at: datetime | None = None

    @property
    def entities(self) -> Sequence[str]:
        """The entities of all parts."""
        return list(dict.fromkeys(part.entity for part in self.parts))

    def apply(self, rows: DataFrame, checkpoint: Checkpoint, waiting: WaitingChanges | None = None) -> None:
        """Applies a batch of rows of the changelog. The batch ends at `checkpoint`. `waiting` describes the changes
        that still wait after this batch, because the view throttles their service.

        `rows` are those of the view's entities and of the reserved entity `schemas`. They may repeat rows of earlier
        batches.

        Raises ChangelogError (PRECONDITION) if the view's columns have changed. Then nothing of the batch is applied.
        """
        newer = reduce(or_, (_is_newer(entity, self.progress.truncated) for entity in self.entities))
        is_truncate = newer & is_chosen(self.choice) & (F.col("key") == TRUNCATE_KEY)
        is_version = (F.col("entity") == SCHEMAS) & F.col("key").isin(*self.entities)
        marks = rows.where(is_truncate | is_version).select("entity", "position").collect()
        if any(mark["entity"] == SCHEMAS for mark in marks):
            self._refuse_altered()
        truncated: dict[str, str] = {}
        for mark in marks:
            if mark["entity"] != SCHEMAS:
                truncated[mark["entity"]] = max(mark["position"], truncated.get(mark["entity"], ""))
        truncated_now = {**self.progress.truncated, **truncated}
        progress = replace(self.progress, checkpoint=checkpoint, truncated=truncated_now, waiting=waiting)
        counts = self._apply(rows.where(is_chosen(self.choice)), truncated, progress)
        self.rows += sum(counts_of_part.rows for counts_of_part in counts)
        self.deleted += sum(counts_of_part.deleted for counts_of_part in counts)
        self.progress = progress
        self.batches += 1
        self.reach("view:applied")
        self._forget()

    def _apply(
        self, changes: DataFrame, truncated: Mapping[str, str], progress: ViewProgress, *, is_last: bool = True
    ) -> Collection[_Counts]:
        """Applies changes. Stores the progress only if `is_last` is true. Returns the counts of all parts.

        A key's changes can be in several partitions: a row that is moved, or created again, may get another one. If the
        last state of a key lacks values, they come from the row in the target, not from other partitions. These may be
        read late, so their changes of the key may be older than the row. But the row may also lack these changes. So
        they are applied first.
        """
        states = {part.path: _states(part, changes, progress).persist() for part in self.parts}
        try:
            counts = {path: _counts(states_of_part) for path, states_of_part in states.items()}
            if any(counts_of_part.lacking for counts_of_part in counts.values()):
                self._apply_other_partitions(states, changes, truncated, progress)
            self.target.apply(self._batch(states, counts, truncated, progress if is_last else self.progress))
        finally:
            for states_of_part in states.values():
                states_of_part.unpersist()
        return counts.values()

    def _apply_other_partitions(
        self, states: Mapping[Path, DataFrame], changes: DataFrame, truncated: Mapping[str, str], progress: ViewProgress
    ) -> None:
        """Applies the changes of keys whose `states` lack values, from other partitions than that of the state."""
        keys = reduce(
            DataFrame.unionByName,
            (
                states[part.path].where(_LACKS).select(F.lit(part.entity).alias("entity"), F.col("_key").alias("key"))
                for part in self.parts
            ),
        )
        others = in_other_partitions(changes, keys).persist()
        try:
            if not others.isEmpty():
                self._apply(others, truncated, progress, is_last=False)
        finally:
            others.unpersist()

    def _batch(
        self,
        states: Mapping[Path, DataFrame],
        counts: Mapping[Path, _Counts],
        truncated: Mapping[str, str],
        progress: ViewProgress,
    ) -> StateBatch:
        view, *arrays = self.parts
        return StateBatch(
            columns=view.columns,
            states=states[view.path],
            has_deletes=counts[view.path].deleted > 0,
            truncated=truncated.get(view.entity),
            progress=progress.to_json(),
            arrays={
                part.path: ArrayStates(
                    states=states[part.path],
                    is_empty=counts[part.path].is_empty,
                    truncated=truncated.get(part.entity),
                )
                for part in arrays
            },
        )

    def _refuse_altered(self) -> None:
        """Raises ChangelogError (PRECONDITION) if the changelog now has other columns for the view than before."""
        for old_part, new_part in zip(self.parts, self.read_parts(), strict=True):
            old_types = {column.name: column.type for column in old_part.columns}
            new_types = {column.name: column.type for column in new_part.columns}
            differing = [name for name in {**old_types, **new_types} if old_types.get(name) != new_types.get(name)]
            if differing or list(old_types) != list(new_types):
                names = ", ".join(differing) or "their order"
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"the columns of the entity {old_part.entity} have changed ({names})",
                    hint=REBUILD,
                )

    def _forget(self) -> None:
        if self.progress.waiting is not None:
            return  # a waiting change could bring back a deleted row that has no marker
        now = datetime.now(UTC)
        if self._forgotten_at is None or now - self._forgotten_at > FORGET_EVERY:
            self.target.forget(now - self.keep_deleted)
            self._forgotten_at = now


def _is_newer(entity: str, truncated: Mapping[str, str]) -> Expression:
    """Returns the condition that a row is a change of this entity, newer than the entity's last truncate."""
    return (F.col("entity") == entity) & (F.col("position") > truncated.get(entity, ""))


def _states(part: ViewPart, changes: DataFrame, progress: ViewProgress) -> DataFrame:
    is_change = _is_newer(part.entity, progress.truncated) & (F.col("key") != TRUNCATE_KEY)
    return folded(changes.where(is_change), part.columns, from_one_partition=True)


def _counts(states: DataFrame) -> _Counts:
    is_deleted = F.col("_op") == Op.DELETE.value
    counts = (F.count_if(condition) for condition in (~is_deleted, is_deleted, F.expr(_LACKS)))
    [row] = states.select(*counts).collect()
    return _Counts(*row)
