"""Writes deltas as files. Each run writes a folder of its own. Readers use the folders that the newest manifest lists.

The manifest `<output>/manifest/<n>.json` lists the runs. It also has the position that the runs have reached in each
partition of each entity; the next run continues from these positions. If a run is killed, it may leave a folder that no
manifest lists; a later run deletes this folder.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from changelog.connectors.failpoints import Reach, nowhere
from changelog.envelope.errors import ChangelogError, Kind
from changelog.spark_jobs.deltas.derive import KINDS, deltas_of
from changelog.spark_jobs.storage.manifest import numbers
from changelog.spark_jobs.storage.open_store import store_of
from changelog.spark_jobs.storage.records import add_record, newest_record, outrun, run_name
from changelog.spark_jobs.storage.store import FolderStore

FORMAT: Final = 1
DELTAS: Final = "deltas"

GRACE: Final = timedelta(days=1)
"""A folder that the newest manifest does not list is deleted when its newest file is older than this. Until then, it
may be from a run that is still writing.
"""

FAIL_POINTS: Final = ("deltas:written",)
"""The point between two steps at which tests make a run crash: the files are written, but no manifest lists them."""

Form = Literal["parquet", "jsonl"]
Ends = Mapping[str, Mapping[str, str]]
"""The position of the last change in each partition of each entity, by entity and partition. The number of a partition
is a text, because it is a name in a JSON object.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRun:
    """The result of one run: its folder in the output (`path`), the number of deltas of each kind, and the positions of
    the first and the last delta.
    """

    path: str
    kinds: Mapping[str, int]
    first: str
    last: str

    @property
    def rows(self) -> int:
        """The number of deltas of all kinds."""
        return sum(self.kinds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRuns:
    """The content of an output, as a manifest lists it.

    For each partition, the output has all deltas up to the partition's position in `through`. `floor` is a position up
    to which the output has the deltas of all partitions.
    """

    format: int = FORMAT
    form: Form = "parquet"
    floor: str | None = None
    through: Ends = field(default_factory=dict)
    runs: tuple[DeltaRun, ...] = ()

    @property
    def last(self) -> str | None:
        """The position of the last delta of all runs."""
        return max((run.last for run in self.runs), default=None)


def newest(store: FolderStore) -> DeltaRuns:
    """Returns the content that the newest complete manifest lists; it is empty if there is no manifest.

    Raises ChangelogError (MALFORMED) if there are manifests, but none is complete.
    """
    record = newest_record(store, DeltaRuns, FORMAT)
    if record is not None:
        return record
    if numbers(store):
        raise ChangelogError(
            Kind.MALFORMED, f"no manifest in {store.root} is complete", hint="restore one, or use another output"
        )
    return DeltaRuns()


def write(
    store: FolderStore,
    old_record: DeltaRuns,
    changes: DataFrame,
    *,
    form: Form,
    ordered: bool,
    at: datetime,
    reach: Reach = nowhere,
) -> DeltaRun | None:
    """Writes the deltas of those `changes` that the output lacks, and a manifest that lists them. Returns None if the
    output already has the deltas of all `changes`.

    `old_record` is the content of the output so far. `ordered` says two things: all `changes` are after the output's
    floor, and changes that appear later will be after all `changes`. So the position of the last delta can become the
    new floor. Raises ChangelogError (IN_USE) if another run wrote to the output at the same time.
    """
    new_changes = _unwritten(changes, old_record.through)
    bounds = (F.max("position").alias("last"), F.min("position").alias("first"))
    ends = new_changes.groupBy("entity", "partition").agg(*bounds).collect()
    if not ends:
        return None
    path = f"{DELTAS}/{run_name(at)}"
    kinds = _write(deltas_of(new_changes), f"{store.root}/{path}", form)
    run = DeltaRun(
        path=path, kinds=kinds, first=min(end["first"] for end in ends), last=max(end["last"] for end in ends)
    )
    through = {entity: dict(partitions) for entity, partitions in old_record.through.items()}
    for end in ends:
        through.setdefault(end["entity"], {})[str(end["partition"])] = end["last"]
    floor = run.last if ordered else old_record.floor
    new_record = replace(old_record, form=form, floor=floor, through=through, runs=(*old_record.runs, run))
    reach("deltas:written")
    record_number = max(numbers(store), default=0) + 1
    try:
        if newest(store) != old_record:
            raise outrun(store)
        add_record(store, record_number, new_record)
    except ChangelogError:
        store.delete(path)
        raise
    _clear(store, new_record, at)
    return run


def read_deltas(spark: SparkSession, output: str) -> DataFrame:
    """Reads the deltas of an output that has Parquet files. The result has the columns of `derive.SCHEMA`."""
    store = store_of(output, spark)
    record = newest(store)
    if not record.runs:
        raise ChangelogError(Kind.PRECONDITION, f"there are no deltas in {store.root}")
    return spark.read.parquet(*(f"{store.root}/{run.path}" for run in record.runs))


def _unwritten(changes: DataFrame, through: Ends) -> DataFrame:
    """Returns the changes that no run has written. Each change is compared with the last position in its own partition,
    because one partition of an archive can be ahead of another.
    """
    if not through:
        return changes
    is_written = F.lit(False)
    for entity, partitions in through.items():
        for partition, last_position in partitions.items():
            is_written |= (
                (F.col("entity") == entity)
                & (F.col("partition") == int(partition))
                & (F.col("position") <= last_position)
            )
    return changes.where(~is_written)


def _write(deltas: DataFrame, folder: str, form: Form) -> dict[str, int]:
    """Writes deltas to files, sorted by entity and position within each file. Returns the number of deltas by kind."""
    observed = Observation()
    kinds = [F.count(F.when(F.col("kind") == kind, 1)).alias(kind) for kind in KINDS]
    ordered = deltas.observe(observed, *kinds).sortWithinPartitions("entity", "position")
    if form == "jsonl":
        ordered.select(_line()).write.text(folder)
    else:
        ordered.write.option("compression", "zstd").parquet(folder)
    return {kind: count for kind, count in observed.get.items() if count}


def _line() -> Column:
    """Returns a JSON object: the row's entity, partition, key, kind and position, then the members of the delta."""
    head = F.to_json(F.struct("entity", "partition", "key", "kind", "position"))
    return F.concat(F.regexp_replace(head, "}$", ","), F.expr("substr(delta, 2)"))


def _clear(store: FolderStore, runs: DeltaRuns, at: datetime) -> None:
    """Deletes the folders that `runs` does not list and to which nothing was written for `GRACE` before `at`."""
    folders_in_use = {run.path for run in runs.runs}
    modified_s: dict[str, float] = defaultdict(float)
    for file in store.files(DELTAS):
        folder = "/".join(file.path.split("/")[:2])
        modified_s[folder] = max(modified_s[folder], file.modified_s)
    expired_before_s = (at - GRACE).timestamp()
    for folder, newest_s in modified_s.items():
        if folder not in folders_in_use and newest_s < expired_before_s:
            store.delete(folder)
