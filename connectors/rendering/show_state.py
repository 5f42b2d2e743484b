"""Renders a row's state at a moment."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from changelog.connectors.rendering.show_blame import UNAVAILABLE
from changelog.connectors.show import cut
from changelog.connectors.terminal import safe
from changelog.envelope.blame import Blame
from changelog.envelope.codec.json_codec import members

_NAME_CHARS: Final = 32
"""A line has at most this many characters of a column's name."""


def state(row: Blame, *, width: int) -> Iterator[RenderableType]:
    """Yields the columns of the row with their values. `width` is the width of the terminal, in characters."""
    values = {} if row.current is None else members(bytes(row.current))
    longest = max((len(safe(name)) for name in (*values, *row.unavailable)), default=0)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=min(longest, _NAME_CHARS, width // 3), overflow="fold")
    grid.add_column(ratio=1, overflow="fold")
    for name, value in values.items():
        (text,) = cut(safe(value.decode()))
        grid.add_row(Text(safe(name), style="bold"), Text(text, style="dim italic" if value == b"null" else ""))
    for name in row.unavailable:
        grid.add_row(Text(safe(name), style="bold"), Text(UNAVAILABLE, style="dim italic"))
    if row.current is None:
        yield Text("there is no row", style="red")
    elif grid.row_count:
        yield grid
