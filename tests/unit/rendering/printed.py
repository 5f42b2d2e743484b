"""Prints rendered output as the lines of a terminal of a given width."""

import io
from collections.abc import Iterable

from rich.console import Console, RenderableType


def lines(parts: Iterable[RenderableType], width: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]
