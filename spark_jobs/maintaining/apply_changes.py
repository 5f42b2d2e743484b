"""Applies changes to a maintained view, batch after batch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.entity import SCHEMAS, TRUNCATE_KEY
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.schemas.avro import Column
from changelog.spark_jobs.maintaining.progress import REBUILD, ViewProgress
from changelog.spark_jobs.maintaining.target import StateBatch, ViewTarget
from changelog.spark_jobs.views.transforms import Chosen, folded, is_chosen

FORGET_EVERY: Final = timedelta(hours=1)
"""How often old markers of deletes are removed."""


@dataclass(slots=True, kw_only=True)
class MaintainedView:
    """A view of one entity in an open target, and its progress.

    `read_columns` returns the view's columns as the changelog has them now. Markers of deletes are kept for
    `keep_deleted`. `rows`, `deleted` and `batches` count what this run has applied.
    """

    entity: str
    columns: Sequence[Column]
    choice: Chosen
    target: ViewTarget
    progress: ViewProgress
    read_columns: Callable[[], Sequence[Column]]
    keep_deleted: timedelta
    reach: Reach = nowhere
    rows: int = 0
    deleted: int = 0
    batches: int = 0
    _forgotten_at: datetime | None = None

    def apply(self, rows: DataFrame, checkpoint: Mapping[str, Any]) -> None:
        """Applies a batch of the changelog's rows, which ends at `checkpoint`.

        `rows` are those of the entity and of the reserved entity `schemas`. They may repeat rows of earlier batches.

        Raises ChangelogError (PRECONDITION) if the view has other columns now. Nothing of the batch is applied then.
        """
        is_change = (F.col("entity") == self.entity) & is_chosen(self.choice)
        is_truncate = is_change & (F.col("key") == TRUNCATE_KEY) & (F.col("position") > self.progress.truncated)
        is_version = (F.col("entity") == SCHEMAS) & (F.col("key") == self.entity)
        marks = rows.where(is_truncate | is_version).select("entity", "position").collect()
        if any(mark["entity"] == SCHEMAS for mark in marks):
            self._refuse_altered()
        truncated = max((mark["position"] for mark in marks if mark["entity"] == self.entity), default=None)
        progress = replace(self.progress, checkpoint=checkpoint, truncated=truncated or self.progress.truncated)
        is_newer = (F.col("key") != TRUNCATE_KEY) & (F.col("position") > progress.truncated)
        self._apply(rows.where(is_change & is_newer), truncated, progress)
        self.progress = progress
        self.batches += 1
        self.reach("view:applied")
        self._forget()

    def _apply(self, changes: DataFrame, truncated: str | None, progress: ViewProgress) -> None:
        states = folded(changes, self.columns).persist()
        try:
            is_delete = F.col("_op") == Op.DELETE.value
            counts = {
                row["deleted"]: row["count"] for row in states.groupBy(is_delete.alias("deleted")).count().collect()
            }
            self.target.apply(
                StateBatch(
                    columns=self.columns,
                    states=states,
                    has_deletes=True in counts,
                    truncated=truncated,
                    progress=progress.to_json(),
                )
            )
        finally:
            states.unpersist()
        self.rows += counts.get(False, 0)
        self.deleted += counts.get(True, 0)

    def _refuse_altered(self) -> None:
        """Raises ChangelogError (PRECONDITION) if a new version of the entity's columns changes those of the view."""
        old_types = {column.name: column.type for column in self.columns}
        new_types = {column.name: column.type for column in self.read_columns()}
        differing = [name for name in {**old_types, **new_types} if old_types.get(name) != new_types.get(name)]
        if differing or list(old_types) != list(new_types):
            names = ", ".join(differing) or "their order"
            raise ChangelogError(
                Kind.PRECONDITION, f"the columns of {self.entity} have changed ({names})", hint=REBUILD
            )

    def _forget(self) -> None:
        now = datetime.now(UTC)
        if self._forgotten_at is None or now - self._forgotten_at > FORGET_EVERY:
            self.target.forget(now - self.keep_deleted)
            self._forgotten_at = now
