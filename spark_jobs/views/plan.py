"""Plans and builds a view: finds its columns, finds out whether an earlier view can be extended, and makes its rows."""

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.config import NestedConfig, ViewConfig
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.states import fold
from changelog.envelope.versions import Version
from changelog.schemas.avro import Column
from changelog.schemas.spark import struct
from changelog.schemas.types import Array, ColumnType, Primitive, Struct
from changelog.spark_jobs.reading import spark_types
from changelog.spark_jobs.reading.read import read_changelog, refuse_dropped
from changelog.spark_jobs.reading.spark_types import quoted
from changelog.spark_jobs.reading.where import Kafka, Where, name_of
from changelog.spark_jobs.views.copy_rows import ViewColumns
from changelog.spark_jobs.views.to_parquet import View
from changelog.spark_jobs.views.transforms import EVERYTHING, Chosen, chosen, followed, latest, live, nested, until

ALL = ("*",)
"""In the configuration of a view, `columns` has this value if the view has all columns."""


Columns = Mapping[str, Sequence[Column]]
"""The columns of each entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewPlan:
    """Says what a view contains: the rows of one entity, or documents, which are such rows with arrays of other
    entities' rows. With `raw`, all columns are text.
    """

    view: ViewConfig
    choice: Chosen = EVERYTHING
    raw: bool = False
    columns: Columns

    def definition(self, changelog: Where) -> dict[str, object]:
        """Returns the plan and the name of the changelog, as JSON values. Settings that do not change the view's rows
        are left out.
        """
        shapes = {entity: struct(columns) for entity, columns in self.columns.items()}
        view = self.view.model_dump(exclude={"serve", "totals"})  # these do not change the view's rows
        parts = {"changelog": name_of(changelog), "view": view, "choice": asdict(self.choice)}
        return dict(msgspec.json.decode(msgspec.json.encode({**parts, "raw": self.raw, "columns": shapes})))


def columns_of(
    spark: SparkSession, changelog: Where, entities: Iterable[str], position: Position | None, folder: Path | None
) -> dict[str, Sequence[Column]]:
    """Returns the columns of each entity. They are taken from the entity's file in `folder`. If `folder` is None, the
    changelog gives them: the newest version that is not after `position`, or, without `position`, the newest of all.

    Raises ChangelogError (PRECONDITION) if the changelog has no version of an entity's columns.
    """
    names = sorted(set(entities))
    if folder is not None:
        return {entity: spark_types.columns(spark_types.of_file(folder / f"{entity}.avsc")) for entity in names}
    rows = read_changelog(spark, changelog, entities=[SCHEMAS]).where(F.col("key").isin(names))
    versions = until(rows, position).orderBy("position").select("key", "current").collect()
    versions_by_entity = {row["key"]: Version.parse(row["current"].encode()) for row in versions}
    for entity in names:
        if entity not in versions_by_entity:
            raise ChangelogError(
                Kind.PRECONDITION,
                f"{name_of(changelog)} has no columns of the entity {entity} at {position or 'its end'}",
                hint="name a folder with its schema: --schemas DIR (`changelog schemas generate` writes one)",
            )
    return {
        entity: [Column(name=name, type=type_, nullable=True) for name, type_ in version.columns.fields]
        for entity, version in versions_by_entity.items()
    }


def base_of(present: View | None, changelog: Where, plan: ViewPlan, position: Position) -> View | None:
    """Returns the present view if it can be extended to a view as of `position`; otherwise None.

    Both views must have the same definition, and must show all rows and columns of one entity. (A view with a condition
    lacks rows that later changes may need.) If the changelog is on Kafka, the result is always None, because this job
    reads topics only from their beginning.
    """
    view = plan.view
    if present is None or isinstance(changelog, Kafka) or view.where or view.nested or view.columns != ALL:
        return None
    has_same_definition = present.definition == plan.definition(changelog)
    return present if has_same_definition and present.position <= str(position) else None


@contextlib.contextmanager
def build(
    spark: SparkSession,
    changelog: Where,
    plan: ViewPlan,
    position: Position,
    *,
    on: tuple[DataFrame, View] | None = None,
) -> Iterator[DataFrame]:
    """Yields the rows of the view as of `position`.

    With `on`, an earlier view is extended: `on` has its rows, and the view that `base_of` returned. Without `on`, all
    changes are read.

    Raises ChangelogError: USAGE if the view's condition is not valid, or if an entity lacks a column that the
    configuration names; GAP if retention dropped changes that came after the earlier view.
    """
    if on is not None:
        yield _followed(spark, changelog, plan, position, on)
        return
    with _all_changes(spark, changelog, set(plan.view.entities())) as all_changes:
        changes = {entity: chosen(until(rows, position), plan.choice) for entity, rows in all_changes.items()}
        documents = _documents(changes, plan, plan.view, "view")
        names = [*_names(plan.view, documents, "view"), *fold.ABOUT.names]
        yield documents.select(*(quoted(name) for name in names))


@contextlib.contextmanager
def _all_changes(spark: SparkSession, changelog: Where, entities: Collection[str]) -> Iterator[Mapping[str, DataFrame]]:
    """Yields the changes of each entity. A view reads them twice. So changes from Kafka are cached, but changes from
    files are not, because files are cheap to read again.
    """
    changes = {entity: read_changelog(spark, changelog, entities=[entity]) for entity in entities}
    if not isinstance(changelog, Kafka):
        yield changes
        return
    try:
        yield {entity: rows.persist() for entity, rows in changes.items()}
    finally:
        for rows in changes.values():
            rows.unpersist()


def _followed(
    spark: SparkSession, changelog: Where, plan: ViewPlan, position: Position, on: tuple[DataFrame, View]
) -> DataFrame:
    (rows, view), entity = on, plan.view.entity
    assert not isinstance(changelog, Kafka)  # see base_of
    old_position = Position.parse(view.position)
    refuse_dropped(spark, changelog, old_position, "the existing view goes up to")
    all_changes = read_changelog(spark, changelog, entities=[entity], after=old_position)
    changes = chosen(until(all_changes, position), plan.choice)
    return followed(rows, changes, plan.columns[entity], raw=plan.raw)


def shape_of(plan: ViewPlan) -> ViewColumns:
    """Returns the columns of the rows that `build` yields, with the types of `changelog.schemas.types`. Nested
    documents are arrays.
    """
    return ViewColumns([Column(name=name, type=type_, nullable=True) for name, type_ in _fields(plan, plan.view)])


def _fields(plan: ViewPlan, part: ViewConfig | NestedConfig) -> Iterator[tuple[str, ColumnType]]:
    columns = {column.name: column.type for column in plan.columns[part.entity]}
    for name in columns if part.columns == ALL else part.columns:
        yield name, Primitive.STRING if plan.raw else columns[name]
    for member, inner in part.nested.items():
        yield member, Array(element=Struct(fields=tuple(_fields(plan, inner))))


def _documents(
    changes: Mapping[str, DataFrame], plan: ViewPlan, part: ViewConfig | NestedConfig, path: str
) -> DataFrame:
    """Returns the rows of an entity, with all columns and with their nested documents. `path` is what errors call this
    part of the configuration, for example `view.nested.items`.
    """
    states_of = latest(changes[part.entity], plan.columns[part.entity], raw=plan.raw)
    documents = _filtered(live(states_of), part.where)
    for member, inner in part.nested.items():
        inner_path = f"{path}.nested.{member}"
        inner_documents = _documents(changes, plan, inner, inner_path)
        _refuse_unknown(f"{inner_path}.on", list(inner.on.values()), documents, part.entity)
        _refuse_unknown(f"{inner_path}.on", list(inner.on), inner_documents, inner.entity)
        if member.lower() in {name.lower() for name in documents.columns}:
            message = f"{inner_path}: the entity {part.entity} has a column of this name"
            raise ChangelogError(Kind.USAGE, message, hint="rename the nested member")
        inner_names = _names(inner, inner_documents, inner_path)
        documents = nested(documents, member, inner_documents, inner.on, inner_names)
    return documents


def _filtered(rows: DataFrame, condition: str | None) -> DataFrame:
    if condition is None:
        return rows
    try:
        return rows.where(condition)
    except (AnalysisException, ParseException) as error:
        reason = error.getCondition() or "invalid SQL"
        hint = f"the view has the columns: {', '.join(rows.columns)}"
        raise ChangelogError(Kind.USAGE, f"the condition does not fit the view ({reason})", hint=hint) from error


def _names(part: ViewConfig | NestedConfig, rows: DataFrame, path: str) -> list[str]:
    """Returns the names of the entity's columns that this part of the view shows, and then those of the part's nested
    members.
    """
    names = [name for name in rows.columns if name not in fold.ABOUT.names and name not in part.nested]
    if part.columns != ALL:
        _refuse_unknown(f"{path}.columns", list(part.columns), rows, part.entity)
        names = list(part.columns)
    return [*names, *part.nested]


def _refuse_unknown(path: str, names: Sequence[str], rows: DataFrame, entity: str) -> None:
    unknown_name = next((name for name in names if name not in rows.columns), None)
    if unknown_name is not None:
        names_text = ", ".join(name for name in rows.columns if name not in fold.ABOUT.names)
        raise ChangelogError(
            Kind.USAGE, f"{path}: the entity {entity} has no column {unknown_name}", hint=f"it has: {names_text}"
        )
