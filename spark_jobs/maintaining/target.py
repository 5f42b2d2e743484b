"""Defines the interface of a target: a store, such as a table, in which `maintain_view` keeps a view.

`TARGETS` has the targets of this package. Other packages can add targets with an entry point;
docs/how-to/maintain-views.md has an example.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol

from changelog.connectors.config import TotalsConfig
from changelog.connectors.extras import extra_needed
from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.errors import ChangelogError, Kind
from changelog.schemas.avro import Column
from changelog.spark_jobs.maintaining.parts import Path, ViewPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP: Final = "changelog.view_targets"
"""The group of entry points that add targets. Each entry point names a function of the type `Open`."""

TARGETS: Final[Mapping[str, EntryPoint]] = {
    name: EntryPoint(name, f"changelog.spark_jobs.maintaining.{module}:opened", GROUP)
    for name, module in {"postgres": "in_postgres", "delta": "in_delta_lake", "redis": "in_redis"}.items()
}
"""The targets that this package has."""

EXTRAS: Final = frozenset({"redis"})
"""The targets for which the extra of the same name must be installed."""

FAIL_POINTS: Final = ("view:staged", "view:applied")
"""The points between a run's steps at which tests make the run crash. At the first, the target has begun to write a
batch, but has not stored its progress yet; at the second, it has.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """The options that say where a view is kept: `to` is --to, and `dsn` is the text to which --dsn refers.

    Only the target `postgres` keeps `totals` and documents (rows with arrays of other entities' rows). `arrays` are all
    arrays in the documents, outer arrays before inner ones.
    """

    to: str
    dsn: str | None = field(default=None, repr=False)
    totals: TotalsConfig | None = None
    arrays: Sequence[ViewPart] = ()
    reach: Reach = nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayStates:
    """New states of the rows of an array, in the same form as the states of `StateBatch`.

    A batch often has no changes for most arrays. If `is_empty` is true, `states` has no rows, and need not be read.
    """

    states: "DataFrame"
    is_empty: bool
    truncated: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBatch:
    """New states of a view's rows. A target applies them, and stores the progress that the view then has.

    `states` is cached, and has at most one row for each key. Its columns are the view's `columns`, then the columns of
    `changelog.envelope.states.fold.ABOUT`, then `_begun`. For a deleted key, `_op` is "delete". If the batch has a
    truncate of the entity's table, `truncated` is the position of the last one, and all `states` are newer. `progress`
    is the text that the target stores; it may be the text that the target has stored already. `arrays` is empty unless
    `TargetSettings` has arrays.
    """

    columns: Sequence[Column]
    states: "DataFrame"
    has_deletes: bool
    truncated: str | None
    progress: str
    arrays: Mapping[Path, ArrayStates] = field(default_factory=dict)


class ViewTarget(Protocol):
    """An open target. Only one run at a time may write to it."""

    def progress(self) -> str | None:
        """Returns the progress that was stored last; None if the target holds no view.

        Raises ChangelogError (USAGE) if the target holds something that is not a view of this job.
        """

    def create(self, columns: Sequence[Column], progress: str) -> None:
        """Creates an empty view with these columns, and stores its progress. Removes the rows of an earlier view."""

    def apply(self, batch: StateBatch) -> None:
        """Applies a batch, if possible in one transaction. Otherwise, the progress must be stored last.

        1. Rows and markers with positions before `truncated` are removed.
        2. A state is ignored if its key has a row or a marker with the same position or a later one.
        3. Any other delete removes the key's row, and leaves a *marker*: the key, the position and the present time.
        4. Any other state replaces the key's row. If `_begun` is false, the columns named in the state's
           `_unavailable` keep the row's values.
        5. The progress is stored.

        So a batch that is applied again changes nothing, and a batch that comes late cannot bring a deleted row back.
        This method is called by several threads, but never by two at the same time.
        """

    def forget(self, before: datetime) -> None:
        """Removes the markers of deletes that were applied before this time."""


Open = Callable[[TargetSettings], AbstractContextManager[ViewTarget]]
"""Opens a target, and closes it at the end of the block. Raises ChangelogError if the store cannot be reached, or if
another run has it open."""


def opened(name: str, settings: TargetSettings) -> AbstractContextManager[ViewTarget]:
    """Opens the target with this name.

    Raises ChangelogError (USAGE) if there is no such target, or if the package that adds it cannot be imported.
    """
    added = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    entry_point = {**added, **TARGETS}.get(name)
    if entry_point is None:
        names = ", ".join(sorted({*added, *TARGETS}))
        raise ChangelogError(Kind.USAGE, f"there is no target {name}", hint=f"--output is one of: {names}")
    needed = extra_needed(name, f"--output is {name}, and {{}} is not installed") if name in EXTRAS else nullcontext()
    try:
        with needed:
            open_target: Any = entry_point.load()
    except (ImportError, AttributeError) as error:
        raise ChangelogError(
            Kind.USAGE,
            f"the target {name} cannot be loaded: {entry_point.value} ({type(error).__name__})",
            hint="install the package that adds it, with all that it needs",
        ) from error
    target: AbstractContextManager[ViewTarget] = open_target(settings)
    return target
