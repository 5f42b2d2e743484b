"""Renders the blame of a row: the changes that set its attributes, and below each change the attributes that it set."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Final

from msgspec import Raw
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from changelog.connectors.history.key_blame import KeyState
from changelog.connectors.history.key_records import is_arrival
from changelog.connectors.show import MARKS, author, cut, moment
from changelog.connectors.terminal import safe
from changelog.envelope.blame import Attribute, Blame, Writer
from changelog.envelope.model import MISSING, Op, Record
from changelog.envelope.stamp import UNKNOWN_SERVICE

UNAVAILABLE: Final = "unavailable: the database's log did not send it"

_COLOURS: Final = ("blue", "magenta", "cyan", "yellow", "green", "red")
"""The services get these colours in the order in which the title names them. The first colour follows the last."""

_PATH_CHARS: Final = 32
"""A line has at most this many characters of a path."""

_INDENT: Final = 4


def blame(entity: str, key: str, state: KeyState, *, width: int) -> Iterator[RenderableType]:
    """Yields lines for printing. The first line names the services that set the row's attributes. `width` is the width
    of the terminal, in characters.

    The changes are in the order in which they were committed. A change whose values were all replaced later is left
    out, unless it is the last change.
    """
    row = state.blame
    styles = _styles(row)
    yield _title(entity, key, state, styles)
    if row.current is None or row.last is None:
        return
    yield Text("last change: ", style="dim").append_text(_change(row.last, styles, _last_verb(state.change)))
    longest = max((len(safe(attribute.pointer)) for attribute in row.attributes), default=0)
    path_width = min(longest, _PATH_CHARS, width // 3)
    for writer, attributes in _by_writer(row):
        yield ""
        yield _change(writer, styles, _arrival_verb(writer, attributes))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=path_width, overflow="fold")
        grid.add_column(ratio=1, overflow="fold")
        for attribute in attributes:
            grid.add_row(Text(safe(attribute.pointer), style="bold"), _value(attribute))
        yield Padding(grid, (0, 0, 0, min(_INDENT, width // 10)))


def _styles(row: Blame) -> Mapping[str, str]:
    """Returns the style of each service."""
    last = () if row.last is None or row.last.stamp is None else (row.last.stamp.service_name,)
    return dict(zip(dict.fromkeys((*row.services, *last)), cycle(_COLOURS), strict=False))


def _by_writer(row: Blame) -> Sequence[tuple[Writer, Sequence[Attribute]]]:
    """Returns the changes in the order in which they were committed, each with the attributes that it set."""
    groups: dict[tuple[object, bool], list[Attribute]] = {}
    for attribute in row.attributes:
        # A change can set some attributes, and also be the first to show others, whose writer is unknown. The latter
        # are a group of their own.
        groups.setdefault((attribute.writer.position, attribute.writer.stamp is None), []).append(attribute)
    ordered = sorted(groups.values(), key=lambda attributes: attributes[0].writer.position)
    return [(attributes[0].writer, attributes) for attributes in ordered]


def _title(entity: str, key: str, state: KeyState, styles: Mapping[str, str]) -> Text:
    title, row = Text(f"{entity} {safe(key)}", style="bold"), state.blame
    if row.current is None:
        title.append(" is gone", style="not bold red")
        to = state.change.moved_to
        verb = "" if to is None else f"moved to {safe(to.key)}"
        change = Text() if row.last is None else _change(row.last, styles, verb)
        return title.append(": ", style="not bold").append_text(change)
    services = [name for name in row.services if name != UNKNOWN_SERVICE]
    others = Counter(filter(None, map(_nobody, row.attributes)))
    if services:
        number = f"{len(services)} services: " if len(services) > 1 else ""
        names = [Text(safe(name), style=styles[name]) for name in services]
        title.append(f" was set by {number}", style="not bold").append_text(Text(", ").join(names))
        total = len(row.attributes)
        rest = "".join(f"; {count} of {total} attributes {name}" for name, count in others.items())
        return title.append(rest, style="not bold")
    return title.append(f" was set {' and '.join(others)}" if others else " has no attributes", style="not bold")


def _nobody(attribute: Attribute) -> str | None:
    """Returns the end of a sentence about an attribute that no known service set; None if a known service set it."""
    if attribute.writer.stamp is None:
        return "by an unknown writer"
    return "without a stamp" if attribute.writer.stamp.service_name == UNKNOWN_SERVICE else None


def _arrival_verb(writer: Writer, attributes: Sequence[Attribute]) -> str:
    """Returns "moved here" if a create kept or replaced earlier values: only a row that moved here has such values."""
    has_moved = writer.op is Op.CREATE and any(attribute.before is not MISSING for attribute in attributes)
    return "moved here" if has_moved and writer.stamp is not None else ""


def _last_verb(change: Record) -> str:
    if change.envelope.provenance.source.op is Op.READ:
        return "read from the table"
    return "moved here" if is_arrival(change) else ""


def _change(writer: Writer, styles: Mapping[str, str], verb: str) -> Text:
    """Returns a line that says who made a change, what kind of change it is, when it was committed, and at which
    position.

    `verb` replaces the usual verb for the kind of the change, unless it is empty.
    """
    mark, usual_verb, colour = MARKS[writer.op]
    line = Text()
    if writer.stamp is not None:
        line.append(f"{mark} ", style=f"bold {colour}")
        line.append_text(author(writer.stamp, style=f"bold {styles[writer.stamp.service_name]}"))
        line.append(f"  {verb or usual_verb} ")
    else:
        line.append(f"{mark} ", style=f"bold {colour}")
        occasion = " when the table was read" if writer.op is Op.READ else ""
        line.append(f"{verb or f'unknown writer, first seen{occasion}'} ")
    return line.append(f"{moment(writer.committed_at)}  {writer.position}", style="dim")


def _value(attribute: Attribute) -> Text:
    if attribute.value is None:
        return Text(UNAVAILABLE, style="dim italic")
    if not isinstance(attribute.before, Raw):
        (value,) = cut(_text(attribute.value))
        return Text(value)
    before, value = cut(_text(attribute.before), _text(attribute.value))
    return Text(value).append(f"  was {before}", style="dim")


def _text(value: Raw) -> str:
    return safe(bytes(value).decode())
