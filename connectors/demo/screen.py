"""Shows the progress of the demo: as a live picture on a terminal, otherwise as one line per second."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from changelog.connectors.demo.booking import COMPARED, ROWS
from changelog.connectors.demo.reader import Reader
from changelog.envelope.model import Op

REFRESHES_PER_S = 8
LINE_EVERY_S = 1.0

_OPS = {Op.READ: "read", Op.CREATE: "created", Op.UPDATE: "changed", Op.DELETE: "deleted"}


class Screen:
    """A context manager that shows the counts of `reader`. Call `tick` several times a second to update them."""

    def __init__(self, console: Console, reader: Reader) -> None:
        self._console, self._reader = console, reader
        self._began_at = self._printed_at = time.monotonic()
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._happened = ""

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
        elif error is None:
            self._console.print(_tables(self._reader))

    def happened(self, event: str) -> None:
        """Shows an event: a sentence such as "all tables are read; only changes follow"."""
        self._happened = event
        if self._live is None:
            self._console.print(f"   {time.monotonic() - self._began_at:4.1f} s  {event}")

    def tick(self) -> None:
        """Updates the output."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        elif now - self._printed_at >= LINE_EVERY_S:
            self._printed_at = now
            reader = self._reader
            counts = f"{reader.rows_read:,} rows read, {reader.streamed:,} changes streamed"
            self._console.print(f"   {now - self._began_at:4.1f} s  {counts}")

    def _picture(self) -> RenderableType:
        reader = self._reader
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            "  ",
            "snapshot",
            ProgressBar(total=ROWS, completed=min(reader.rows_read, ROWS), width=40),
            f"{reader.rows_read:,} rows",
        )
        return Group(bar, _tables(reader), Text(f"   {self._happened}", style="dim"))


def _tables(reader: Reader) -> RenderableType:
    """Returns the numbers of changes: a table of the entities, beside a table of the writers."""
    both = Table.grid(padding=(0, 6))
    both.add_row(_entities(reader), _writers(reader))
    return both


def _entities(reader: Reader) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("  entity")
    for heading in _OPS.values():
        table.add_column(heading, justify="right")
    for entity in COMPARED:
        counts = (reader.changes[entity, op] for op in _OPS)
        table.add_row(f"  {entity}", *(f"{count:,}" if count else "·" for count in counts))
    return table


def _writers(reader: Reader) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("by service")
    table.add_column("changes", justify="right")
    for service, count in sorted(reader.writers.copy().items()):
        table.add_row(Text(service, style="blue"), f"{count:,}")
    return table
