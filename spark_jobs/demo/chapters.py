"""The chapters on Spark: each runs a job, checks the result against the changelog read in Python, and shows it."""

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
"""The folders that the chapters write, in the demo's folder."""


DAMAGED_SHOWN: Final = 5


VALUE_CHARS: Final = 72


BESIDE_VALUE: Final = 37
"""Characters on a line beside a patch's value, which is cut to fit the screen."""


def _archive(scene: Scene) -> Mapping[str, str]:
    """Many small files of the log become one sorted file of each entity and day."""
    story, path = scene.story, scene.story.folder / "data" / "changelog"
    story.watch.say("The log has a file for each commit; the archive has one for each entity's day, sorted by key:")
    rows = _rows(story.log)
    summary = scene.run(archive.JOB, "--compact", "all")
    if _rows(story.log) != rows:
        raise ChangelogError(Kind.DIVERGED, "the changelog has other rows after its compaction")
    table = columns("   file", ("rows", "right"), ("", "right"))
    for file in (newest(local(path)) or NOTHING).files:
        table.add_row(
            f"   {file.path.rpartition('/')[0]}/…", f"{file.rows:,}", show.size((path / file.path).stat().st_size)
        )
    story.console.print(table)
    story.watch.lap(
        f"{summary['archived_files']} files of the log, all but its two newest, are these now; readers see the same"
        f" {rows:,} changes"
    )
    return {"data/changelog/archive/": "what of it was made fewer files, sorted by key"}


def _deltas(scene: Scene) -> Mapping[str, str]:
    """Each change as a JSON Patch; folded, they are the rows again."""
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
    story.watch.lap(f"{summary['deltas']:,} deltas; folded, they are the {len(states):,} orders as they stand")
    return {f"{DELTAS}/": "a JSON Patch a change, as Parquet"}


def _view(scene: Scene) -> Mapping[str, str]:
    """The orders as they were before a batch job changed what it should not have."""
    story = scene.story
    changes = list(_changes(story.log))
    batch = [change for change in changes if change.service == booking.AUDIT]
    first = Position.parse(batch[0].position)
    story.watch.say(
        f"{booking.AUDIT} {batch[0].identifier} put a tax on {len(batch):,} orders that do not owe it. Those as of just"
        " before:"
    )
    before = str(Position(first.epoch, first.commit, 0))
    scene.run(rebuild_view.JOB, "--entity", "order", "--as-of", before, "--to", str(story.folder / VIEW))
    view = {
        str(row["id"]): row.asDict() for row in scene.spark.read.parquet(str(story.folder / VIEW / "current")).collect()
    }
    _refuse_different(view, _states(change for change in changes if change.position < str(first)))
    now = _states(changes)
    damage = _Damage(made=_states(batch), before=view, now=now)
    story.console.print(damage.table(str(story.order)))
    story.watch.lap(
        f"{len(view):,} orders, as the changes up to there leave them; {len(damage.left):,} are still charged"
        f" {damage.too_much():,.2f} too much"
    )
    return {f"{VIEW}/current/": f"the orders before {booking.AUDIT}, as Parquet"}


CHAPTERS: Sequence[Chapter] = (_archive, _deltas, _view, drift)
"""The chapters in order: the last one damages files that the first one wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    position: str
    key: str
    service: str
    identifier: str
    current: str | None
    original: str | None


def _changes(log: Log) -> Iterator[_Change]:
    """Changes of orders, by position, as a reader in plain Python sees them."""
    columns = {name: name for name in ("position", "key", "identifier", "current", "original")}
    columns["service"] = "service_name"
    for rows in log.read(entity="order"):
        for row in rows.select(list(columns.values())).to_pylist():
            yield _Change(**{name: row[column] for name, column in columns.items()})


def _states(changes: Iterator[_Change] | Sequence[_Change]) -> dict[str, dict[str, Any]]:
    """The last state of each key."""
    last = {change.key: change.current for change in changes}
    return {key: msgspec.json.decode(current) for key, current in last.items() if current is not None}


def _rows(log: Log) -> int:
    return sum(rows.num_rows for rows in log.read())


def _refuse_different(view: Mapping[str, Mapping[str, Any]], states: Mapping[str, Mapping[str, Any]]) -> None:
    """A view's values are typed, a message's are JSON: their texts are compared."""
    _, columns = booking.COMPARED["order"]
    seen, due = ({key: [str(row[name]) for name in columns] for key, row in rows.items()} for rows in (view, states))
    if seen != due:
        raise ChangelogError(Kind.DIVERGED, "orders differ between the view and the changelog up to its position")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Damage:
    """What a batch job did to orders, by key: the states it wrote, those before it, and those of now."""

    made: Mapping[str, Mapping[str, Any]]
    before: Mapping[str, Mapping[str, Any]]
    now: Mapping[str, Mapping[str, Any]]

    @property
    def left(self) -> list[str]:
        """The orders that still have the batch's amount."""
        return [key for key, state in self.made.items() if self.now[key]["amount"] == state["amount"]]

    def too_much(self) -> float:
        """How much more these orders cost than before, in all."""
        return sum(float(self.now[key]["amount"]) - float(self.before[key]["amount"]) for key in self.left)

    def table(self, order: str) -> Table:
        """The amounts of one order, and of some that nobody has corrected."""
        table = columns("   order", ("before", "right"), ("by the batch", "right"), ("now", "right"), "")
        for key in [order, *self.left[:DAMAGED_SHOWN]]:
            amounts = [str(state[key]["amount"]) for state in (self.before, self.made, self.now)]
            right = amounts[0] == amounts[2]
            verdict = Text("set right" if right else "still wrong", style="green" if right else "red")
            table.add_row(f"   {key}", *amounts, verdict)
        return table


def _folded(deltas: Mapping[str, Sequence[Delta]], changes: Sequence[_Change]) -> dict[str, Value]:
    """The states that result from deltas, by key.

    A row that changed while its table was first read has no read of its own: its deltas begin at the change's original.
    """
    first = {change.key: change.original for change in reversed(changes)}
    folded = {}
    for key, patches in deltas.items():
        whole, original = list(foldable(patches)), first[key]
        folded[key] = fold(whole) if whole or original is None else fold(patches, canonical.parse(original))
    return {key: state for key, state in folded.items() if state is not MISSING}


def _patches(deltas: Sequence[Delta], room: int) -> Table:
    """The deltas of one order: the service, and each operation with its value in at most `room` characters."""
    table = columns("   by", "op", "path", "value")
    for delta in deltas:
        who = Text(f"   {safe(delta.provenance.stamp.service_name)}", style="blue")
        for operation in delta.patch:
            value = canonical.dumps(operation["value"]).decode() if "value" in operation else ""
            style = "dim" if operation["op"] == "test" else "default"
            shown = Text(safe(value if len(value) <= room else f"{value[:room]}…"))
            table.add_row(who, operation["op"], operation["path"] or "(all)", shown, style=style)
            who = Text("")
    return table
