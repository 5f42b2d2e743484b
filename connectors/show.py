"""Prints changes for people, on a terminal: who made a change, when, and what it changed."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TextIO

from msgspec import Raw
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.terminal import safe, safe_lines
from changelog.envelope.codec.json_codec import members
from changelog.envelope.entity import GAPS, TRUNCATE_KEY
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Record, Stamp

VALUE_CHARS = 72
"""At most this many characters of a value are shown. If the value before or after a change is longer, both are cut
around the first character in which they differ."""

CONTEXT_CHARS = 16
"""How many characters are shown before the first difference between two long values."""

PLAIN_WIDTH = 120
"""The width of output that does not go to a terminal, in characters."""

MARKS = {
    Op.CREATE: ("+", "created", "green"),
    Op.UPDATE: ("~", "changed", "yellow"),
    Op.DELETE: ("-", "deleted", "red"),
    Op.READ: ("=", "read", "cyan"),
    Op.TRUNCATE: ("!", "truncated", "magenta"),
}

_NOT_JSON = "(not JSON)"
"""If a row's text is not JSON, it is shown as one attribute: this is the attribute's name, and the whole text is its
value. Older versions of this program could store such rows."""


class RenderChange(Protocol):
    """A function, such as `record`, that returns one change in a form that can be printed."""

    def __call__(self, change: Record, /, *, subject: bool) -> ConsoleRenderable: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedValue:
    """One attribute that a change touched.

    `before` and `after` are its JSON texts before and after the change; MISSING if the row did not have the attribute.
    """

    name: str
    before: str | Missing
    after: str | Missing


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Escapes characters that would act on the terminal, except those that Rich itself writes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(safe_lines(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, for which the command line has an exit code. Rich itself would exit."""
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """Returns the console to which commands print.

    On a terminal, it has the terminal's colours and width. Elsewhere, it prints plain text, `PLAIN_WIDTH` wide unless
    the environment variable COLUMNS says otherwise.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PLAIN_WIDTH
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def changes(envelope: Envelope) -> list[ChangedValue]:
    """Returns the attributes that differ between the row before a change and the row after it, in the table's order.

    Leaves out attributes that are unavailable in one of the two rows.
    """
    source = envelope.provenance.source
    unavailable = {*source.unavailable, *source.unavailable_original}
    before, after = json_texts(envelope.original), json_texts(envelope.current)
    names = [name for name in {**after, **before} if name not in unavailable]
    return [
        ChangedValue(name=name, before=before.get(name, MISSING), after=after.get(name, MISSING))
        for name in names
        if before.get(name) != after.get(name)
    ]


def json_texts(state: Raw | Missing | None) -> dict[str, str]:
    """Returns the JSON text of each attribute of a row, or of each member of a stamp's context."""
    if state is None or isinstance(state, Missing):
        return {}
    try:
        return {name: value.decode() for name, value in members(bytes(state)).items()}
    except ValueError:
        return {_NOT_JSON: bytes(state).decode()}


def record(change: Record, *, subject: bool = True) -> ConsoleRenderable:
    """Returns one change for printing. The first line says when, how and by whom the row was changed.

    If the stamp has a context, the second line shows the context. The attributes follow. If `subject` is True, the
    first line also has the entity and the key.
    """
    return change_with(change, _body(change.envelope), subject=subject)


def change_with(change: Record, lines: Iterable[Text], *, subject: bool) -> ConsoleRenderable:
    """Returns one change for printing: what `record` shows, with `lines` in place of the attributes."""
    source = change.envelope.provenance.source
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(ratio=1, overflow="fold")
    grid.add_row(moment(source.committed_at), _headline(change, subject=subject))
    context = change.envelope.provenance.stamp.context
    if context is not None and context != "{}":
        grid.add_row("", _context(context))
    for line in lines:
        grid.add_row("", line)
    return grid


def history(records: Sequence[Record], *, key: str, render: RenderChange = record) -> Iterator[ConsoleRenderable]:
    """Yields what is printed for the changes of one key, and between two changes the time that passed between them.

    If the row had another key before it moved to `key`, its changes under that other key are shown with that key.
    `render` renders one change.
    """
    earlier: datetime | None = None
    for change in records:
        committed_at = change.envelope.provenance.source.committed_at
        if earlier is not None:
            yield Padding(Text(f"│ {duration(committed_at - earlier)} later", style="dim"), (0, 0, 0, 2))
        yield render(change, subject=change.place.key not in (key, TRUNCATE_KEY))
        earlier = committed_at


class SnapshotBar:
    """Shows one progress bar for each table, on a terminal, while tables are read. Shows nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = _bars(stream)
        self._tasks: dict[str, TaskID] = {}

    def update(self, windows: Mapping[str, Any]) -> None:
        """Shows how far each table has been read, and removes the bars after all tables have been read.

        `windows` is the member of a checkpoint that holds the progress of each entity.
        """
        if self._progress.disable:
            return
        for entity, progress in windows.items():
            if entity not in self._tasks and progress["complete"]:
                continue  # the table was read before this service began
            pages_done, pages = pages_read(progress)
            if entity not in self._tasks:
                self._tasks[entity] = self._progress.add_task(f"reading {entity}", total=pages)
                self._progress.start()
            self._progress.update(self._tasks[entity], completed=pages_done, total=pages)
        if self._progress.finished:
            self.close()

    def close(self) -> None:
        """Removes the bars from the screen."""
        self._progress.stop()


class RestorationBar:
    """Shows one progress bar on a terminal, while rows are restored. Shows nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._progress = _bars(stream)
        self._task: TaskID | None = None
        self._most = 0

    def update(self, left: int) -> None:
        """Shows that `left` is left to restore, in any unit. The full bar stands for the largest `left` so far.

        Shows no bar until `left` is above 0 for the first time.
        """
        self._most = max(self._most, left)
        if self._progress.disable or not self._most:
            return
        if self._task is None:
            self._task = self._progress.add_task("restoring rows", total=self._most)
            self._progress.start()
        self._progress.update(self._task, completed=self._most - left, total=self._most)

    def close(self) -> None:
        """Removes the bar from the screen."""
        self._progress.stop()


def _bars(stream: TextIO) -> Progress:
    return Progress(
        TextColumn("{task.description}", style="bold"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(file=stream, highlight=False, markup=False, emoji=False),
        transient=True,
        disable=not stream.isatty(),
    )


def moment(time: datetime) -> str:
    """Returns a time as text, to the millisecond, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def duration(span: timedelta) -> str:
    """Returns a span as text, such as `0.21 s`, `90 s`, `3.5 h` or `12 days`.

    The unit is the largest that fits at least twice, else seconds. A span may be negative: clocks may step back.
    """
    seconds = span.total_seconds()
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if abs(seconds) >= 2 * unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds:.3g} s"


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: `1 change`, `2 changes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(nbytes: int) -> str:
    """Returns a number of bytes as text, in its largest binary unit: `1.5 MiB`."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.3g} {unit}" if unit != "B" else f"{nbytes} B"
        amount /= 1024
    return f"{amount:.3g} TiB"


def cut(*texts: str) -> list[str]:
    """Returns the texts, short enough for one line.

    If one of them is longer than VALUE_CHARS, all are cut, and keep the part around their first difference. One text
    alone keeps its beginning.
    """
    if all(len(text) <= VALUE_CHARS for text in texts):
        return list(texts)
    common = len(os.path.commonprefix(texts)) if len(texts) > 1 else 0  # noqa: RUF071 - characters are what is meant
    start = max(common - CONTEXT_CHARS, 0)
    lead = "…" if start else ""
    return [
        lead + text[start : start + VALUE_CHARS] + ("…" if len(text) > start + VALUE_CHARS else "") for text in texts
    ]


def version_of(stamp: Stamp) -> str:
    """Returns the version of a stamp's service; an empty text if the stamp has none."""
    return "" if stamp.api_version == stamp.service_name else stamp.api_version  # without a stamp, both are "unknown"


def author(stamp: Stamp, *, style: str = "bold blue") -> Text:
    """Returns who made a change: the service in `style`, its version, and the identifier of the stamp."""
    text = Text(safe(stamp.service_name), style=style, end="")
    if version := version_of(stamp):
        text.append(safe(f" {version}"), style="not bold dim")
    if stamp.identifier:
        text.append(safe(f"  {stamp.identifier}"), style="not bold dim")
    return text


def _headline(change: Record, *, subject: bool) -> Text:
    source, stamp = change.envelope.provenance.source, change.envelope.provenance.stamp
    mark, verb, colour = MARKS[source.op]
    line = Text()
    if change.entity == GAPS and source.op is Op.CREATE:
        return line.append("! changes were lost", style="bold red")
    line.append(f"{mark} ", style=f"bold {colour}")
    if subject:
        line.append(f"{change.entity} {safe(change.place.key)}  ", style="bold")
    line.append(_moved(change) or verb, style=colour)
    if source.op is not Op.READ:
        line.append("  by ", style="dim")
        line.append(author(stamp))
    return line


def _context(context: str) -> Text:
    """Returns one line with the context of a stamp: further details that the application gave about the change."""
    attributes = (_attribute(name, value) for name, value in json_texts(Raw(context)).items())
    return Text("   ").join([Text("context", style="dim italic"), *attributes])


def _moved(change: Record) -> str:
    for word, place in (("moved to", change.moved_to), ("moved from", change.moved_from)):
        if place is not None:
            other_place = safe(place.key) if place.key != change.place.key else f"partition {place.partition}"
            return f"{word} {other_place}"
    return ""


def _body(envelope: Envelope) -> Iterator[Text]:
    source = envelope.provenance.source
    if source.op is not Op.UPDATE:
        state = json_texts(envelope.original if source.op is Op.DELETE else envelope.current)
        if state:
            yield Text("   ").join(_attribute(name, value) for name, value in state.items())
    elif envelope.original is MISSING:
        yield Text("   ").join(_attribute(name, value) for name, value in json_texts(envelope.current).items())
        yield Text("the database's log does not have the row before this change", style="dim italic")
    else:
        yield from _differences(changes(envelope))
    if source.unavailable:
        yield Text(safe(f"unavailable: {', '.join(source.unavailable)}"), style="dim italic")


def _differences(values: Sequence[ChangedValue]) -> Iterator[Text]:
    if not values:
        yield Text("no published column changed", style="dim italic")
    width = max((len(change.name) for change in values), default=0)
    for change in values:
        before, after = cut(_text(change.before), _text(change.after))
        line = Text(safe(change.name).ljust(width + 2))
        line.append(before, style="red")
        line.append(" → ", style="dim")
        line.append(after, style="green")
        yield line


def _attribute(name: str, value: str) -> Text:
    (line,) = cut(safe(value))
    text = Text(f"{safe(name)} ", style="dim", no_wrap=True)
    return text.append(line, style="dim italic" if value == "null" else "not dim")


def _text(value: str | Missing) -> str:
    return "absent" if isinstance(value, Missing) else safe(value)
