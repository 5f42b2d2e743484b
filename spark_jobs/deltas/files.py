"""Deltas as files: each run writes a folder of its own, and counts once the newest manifest lists it.

`<output>/manifest/<n>.json` lists the runs and says, by entity and partition, up to which position they go: the next
run goes on behind it. A run that was killed leaves a folder that nobody lists, and that a later run clears away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from connectors.failpoints import Reach, nowhere
from envelope.errors import ChangelogError, Kind
from spark_jobs.deltas.derive import KINDS, deltas_of
from spark_jobs.storage.manifest import Store, add_record, newest_record, numbers, outrun, run_name, store_of

FORMAT: Final = 1
DELTAS: Final = "deltas"

GRACE: Final = timedelta(days=1)
"""What no manifest lists is cleared away when it is older: a run that goes on is younger."""

FAIL_POINTS: Final = ("deltas:written",)
"""The boundary between two steps at which a crash is tried: written, and not yet listed."""

Form = Literal["parquet", "jsonl"]
Ends = Mapping[str, Mapping[str, str]]
"""By entity and partition (as text, for JSON) the position of the last change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run wrote: a folder below the output, how many deltas by kind, and their first and last position."""

    path: str
    kinds: Mapping[str, int]
    first: str
    last: str

    @property
    def rows(self) -> int:
        """All kinds together."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What an output holds: the deltas of each partition up to `through`, and of all of them up to `floor`."""

    format: int = FORMAT
    form: Form = "parquet"
    floor: str | None = None
    through: Ends = field(default_factory=dict)
    runs: tuple[Run, ...] = ()

    @property
    def last(self) -> str | None:
        """The position of the last of all deltas."""
        return max((run.last for run in self.runs), default=None)


def newest(store: Store) -> Runs:
    """What the newest whole manifest says; nothing where there is none."""
    found = newest_record(store, Runs, FORMAT)
    if found is not None:
        return found
    if numbers(store):
        raise ChangelogError(
            Kind.MALFORMED, f"no manifest in {store.root} is whole", hint="restore one, or use another output"
        )
    return Runs()


def write(
    store: Store, before: Runs, changes: DataFrame, *, form: Form, ordered: bool, at: datetime, reach: Reach = nowhere
) -> Run | None:
    """Writes the deltas of `changes` behind what is there, and commits them; None where there are none.

    `changes` are `ordered` when they are all behind the floor, and no earlier one can appear later.
    Raises ChangelogError, IN_USE, when another run wrote to the output meanwhile.
    """
    rest = _behind(changes, before.through)
    ends = rest.groupBy("entity", "partition").agg(F.max("position").alias("last"), F.min("position").alias("first"))
    found = ends.collect()
    if not found:
        return None
    path = f"{DELTAS}/{run_name(at)}"
    kinds = _write(deltas_of(rest), f"{store.root}/{path}", form)
    run = Run(
        path=path, kinds=kinds, first=min(each["first"] for each in found), last=max(each["last"] for each in found)
    )
    through = {entity: dict(partitions) for entity, partitions in before.through.items()}
    for each in found:
        through.setdefault(each["entity"], {})[str(each["partition"])] = each["last"]
    floor = run.last if ordered else before.floor
    after = replace(before, form=form, floor=floor, through=through, runs=(*before.runs, run))
    reach("deltas:written")
    number = max(numbers(store), default=0) + 1
    try:
        if newest(store) != before:
            raise outrun(store)
        add_record(store, number, after)
    except ChangelogError:
        store.delete(path)
        raise
    _clear(store, after, at)
    return run


def read_deltas(spark: SparkSession, output: str) -> DataFrame:
    """The deltas that an output of Parquet files holds, with the columns of `spark_jobs.deltas.derive.SCHEMA`."""
    store = store_of(output, spark)
    found = newest(store)
    if not found.runs:
        raise ChangelogError(Kind.PRECONDITION, f"there are no deltas in {store.root}")
    return spark.read.parquet(*(f"{store.root}/{run.path}" for run in found.runs))


def _behind(changes: DataFrame, through: Ends) -> DataFrame:
    """What no run had. Partitions are told apart: of an archive, one may have been filled further than another."""
    if not through:
        return changes
    had = F.lit(False)
    for entity, partitions in through.items():
        for partition, last in partitions.items():
            had |= (F.col("entity") == entity) & (F.col("partition") == int(partition)) & (F.col("position") <= last)
    return changes.where(~had)


def _write(deltas: DataFrame, folder: str, form: Form) -> dict[str, int]:
    """Writes the files, those of one entity sorted by position; gives how many of each kind."""
    observed = Observation()
    kinds = [F.count(F.when(F.col("kind") == kind, 1)).alias(kind) for kind in KINDS]
    ordered = deltas.observe(observed, *kinds).sortWithinPartitions("entity", "position")
    if form == "jsonl":
        ordered.select(_line()).write.text(folder)
    else:
        ordered.write.option("compression", "zstd").parquet(folder)
    return {kind: count for kind, count in observed.get.items() if count}


def _line() -> Column:
    """One JSON object: what the row is of, then the delta's own members."""
    head = F.to_json(F.struct("entity", "partition", "key", "kind", "position"))
    return F.concat(F.regexp_replace(head, "}$", ","), F.expr("substr(delta, 2)"))


def _clear(store: Store, runs: Runs, at: datetime) -> None:
    listed = {run.path for run in runs.runs}
    until_s = (at - GRACE).timestamp()
    stale = {
        "/".join(found.path.split("/")[:2]) for found in store.files(DELTAS) if found.modified_s < until_s
    } - listed
    for path in stale:
        store.delete(path)
