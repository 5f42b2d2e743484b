"""Runs those chapters of the demo that use Spark. Each chapter runs a job, and shows the job's result. To check this
result, it also reads the changelog in plain Python.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from rich.table import Table
from rich.text import Text

from changelog.connectors import show
from changelog.connectors.demo import booking
from changelog.connectors.sinks import Log
from changelog.connectors.terminal import safe
from changelog.envelope import canonical
from changelog.envelope.canonical import Value
from changelog.envelope.delta import Delta, delta_codec, fold, foldable
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import MISSING
from changelog.envelope.position import Position
from changelog.spark_jobs import archive, derive_deltas, rebuild_view
from changelog.spark_jobs.demo.drift import drift
from changelog.spark_jobs.demo.scene import Chapter, Scene, columns
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import NOTHING, newest

DELTAS, VIEW = "deltas", "views/order"
"""The folders for deltas and for the view of orders, in the demo's folder."""


DAMAGED_SHOWN: Final = 5
"""At most this many orders with a wrong amount are shown."""

VALUE_CHARS: Final = 72
"""At most this many characters of a value in a patch are shown, even on a wide screen."""

BESIDE_VALUE: Final = 37
"""The width, in characters, of all columns of the table of patches except `value`."""


def _archive(scene: Scene) -> Mapping[str, str]:
    """Compacts many small files of the log into one sorted file for each entity and day."""
    story, path = scene.story, scene.story.folder / "data" / "changelog"
    story.watch.say("The log has a file for each commit; the archive has one for each entity and day, sorted by key:")
    rows = _rows(story.log)
    summary = scene.run(archive.JOB, "--compact", "all")
    if _rows(story.log) != rows:
        raise ChangelogError(Kind.DIVERGED, "the number of rows in the changelog changed when it was compacted")
    table = columns("   file", ("rows", "right"), ("", "right"))
    for file in (newest(local(path)) or NOTHING).files:
        table.add_row(
            f"   {file.path.rpartition('/')[0]}/…", f"{file.rows:,}", show.size((path / file.path).stat().st_size)
        )
    story.console.print(table)
    story.watch.lap(
        f"these replace {summary['archived_files']} files of the log, all but its two newest; readers see the same"
        f" {rows:,} changes"
    )
    return {"data/changelog/archive/": "the compacted part of the changelog: fewer files, sorted by key"}


def _deltas(scene: Scene) -> Mapping[str, str]:
    """Derives a JSON Patch from each change. Applying all patches of a row in order gives the row again."""
    from changelog.spark_jobs.deltas.files import read_deltas  # noqa: PLC0415

    story = scene.story
    story.watch.say("What each change altered, as JSON Patches (RFC 6902):")
    output = story.folder / DELTAS
    summary = scene.run(derive_deltas.JOB, "--output", str(output))
    rows = read_deltas(scene.spark, str(output)).where("entity = 'order'").orderBy("position")
    deltas: dict[str, list[Delta]] = {}
    for key, text in rows.select("key", "delta").collect():
        deltas.setdefault(key, []).append(delta_codec.decode(text.encode()))
    story.console.print(_patches(deltas[str(story.order)], min(VALUE_CHARS, story.console.width - BESIDE_VALUE)))
    folded = _folded(deltas, list(_changes(story.log)))
    states = {key: canonical.parse(text) for key, text in story.states["order"].items()}
    if canonical.text_of(folded) != canonical.text_of(states):
        raise ChangelogError(Kind.DIVERGED, "orders differ between deltas and changelog")
    story.watch.lap(f"{summary['deltas']:,} deltas; folded, they give the {len(states):,} present orders")
    return {f"{DELTAS}/": "a JSON Patch for each change, as Parquet"}


def _view(scene: Scene) -> Mapping[str, str]:
    """Rebuilds the orders as they were before a faulty batch job changed them."""
    story = scene.story
    changes = list(_changes(story.log))
    batch = [change for change in changes if change.service == booking.AUDIT]
    first = Position.parse(batch[0].position)
    story.watch.say(
        f"{booking.AUDIT} {batch[0].identifier} put a tax on {len(batch):,} orders that do not owe it. Here are the"
        " orders as of just before:"
    )
    before = str(Position(first.epoch, first.commit, 0))
    scene.run(rebuild_view.JOB, "--entity", "order", "--as-of", before, "--to", str(story.folder / VIEW))
    view = {
        str(row["id"]): row.asDict() for row in scene.spark.read.parquet(str(story.folder / VIEW / "current")).collect()
    }
    _refuse_different(view, _states(change for change in changes if change.position < str(first)))
    now = _states(changes)
    damage = _Damage(by_batch=_states(batch), before=view, now=now)
    story.console.print(damage.table(str(story.order)))
    story.watch.lap(
        f"{len(view):,} orders, rebuilt as of that moment; {len(damage.uncorrected):,} of them are still charged too"
        f" much, {damage.excess():,.2f} in all"
    )
    return {f"{VIEW}/current/": f"the orders before {booking.AUDIT}, as Parquet"}


CHAPTERS: Sequence[Chapter] = (_archive, _deltas, _view, drift)
"""The chapters, in the order in which they run. `drift` must remain the last, because it damages the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    position: str
    key: str
    service: str
    identifier: str
    current: str | None
    original: str | None


def _changes(log: Log) -> Iterator[_Change]:
    """Reads the changes of orders in plain Python, by position."""
    columns = {name: name for name in ("position", "key", "identifier", "current", "original")}
    columns["service"] = "service_name"
    for rows in log.read(entity="order"):
        for row in rows.select(list(columns.values())).to_pylist():
            yield _Change(**{name: row[column] for name, column in columns.items()})


def _states(changes: Iterator[_Change] | Sequence[_Change]) -> dict[str, dict[str, Any]]:
    """Returns the last state of each key, without deleted keys."""
    last = {change.key: change.current for change in changes}
    return {key: msgspec.json.decode(current) for key, current in last.items() if current is not None}


def _rows(log: Log) -> int:
    return sum(rows.num_rows for rows in log.read())


def _refuse_different(view: Mapping[str, Mapping[str, Any]], states: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ChangelogError if the view differs from the states.

    It compares values as text, because values in a view have types, while values in messages are JSON.
    """
    _, columns = booking.COMPARED["order"]
    actual, expected = (
        {key: [str(row[name]) for name in columns] for key, row in rows.items()} for rows in (view, states)
    )
    if actual != expected:
        raise ChangelogError(Kind.DIVERGED, "the view's orders differ from those in the changelog at its position")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damage:
    """The damage that a batch job did to orders: the states that the job wrote, the states before it, and the states
    now, all by key.
    """

    by_batch: Mapping[str, Mapping[str, Any]]
    before: Mapping[str, Mapping[str, Any]]
    now: Mapping[str, Mapping[str, Any]]

    @property
    def uncorrected(self) -> list[str]:
        """The keys of the orders that still have the amount that the batch job wrote."""
        return [key for key, state in self.by_batch.items() if self.now[key]["amount"] == state["amount"]]

    def excess(self) -> float:
        """Returns how much more the uncorrected orders now cost, in all, than before the batch job."""
        return sum(float(self.now[key]["amount"]) - float(self.before[key]["amount"]) for key in self.uncorrected)

    def table(self, order: str) -> Table:
        """Returns a table with the amounts of one order, and of some uncorrected orders."""
        table = columns("   order", ("before", "right"), ("by the batch", "right"), ("now", "right"), "")
        for key in [order, *self.uncorrected[:DAMAGED_SHOWN]]:
            amounts = [str(state[key]["amount"]) for state in (self.before, self.by_batch, self.now)]
            right = amounts[0] == amounts[2]
            verdict = Text("set right" if right else "still wrong", style="green" if right else "red")
            table.add_row(f"   {key}", *amounts, verdict)
        return table


def _folded(deltas: Mapping[str, Sequence[Delta]], changes: Sequence[_Change]) -> dict[str, Value]:
    """Folds the deltas of each key into the state of the key. Deleted keys are left out.

    If a row changed while its table was first read, the changelog has no `read` of this row. Then its deltas apply to
    the `original` of its first change.
    """
    first_original = {change.key: change.original for change in reversed(changes)}
    folded = {}
    for key, patches in deltas.items():
        from_full_state, original = list(foldable(patches)), first_original[key]
        if from_full_state or original is None:
            folded[key] = fold(from_full_state)
        else:
            folded[key] = fold(patches, canonical.parse(original))
    return {key: state for key, state in folded.items() if state is not MISSING}


def _patches(deltas: Sequence[Delta], room: int) -> Table:
    """Returns a table of one order's deltas, which shows the service and the operations of each delta. Values are cut
    to `room` characters.
    """
    table = columns("   by", "op", "path", "value")
    for delta in deltas:
        service = Text(f"   {safe(delta.provenance.stamp.service_name)}", style="blue")
        for operation in delta.patch:
            value = canonical.dumps(operation["value"]).decode() if "value" in operation else ""
            style = "dim" if operation["op"] == "test" else "default"
            shown_text = Text(safe(value if len(value) <= room else f"{value[:room]}…"))
            table.add_row(service, operation["op"], operation["path"] or "(all)", shown_text, style=style)
            service = Text("")
    return table
