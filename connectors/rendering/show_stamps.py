"""Renders a table that counts the newest changes by entity, and by the service that their stamps name."""

from collections.abc import Sequence

from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors.history.stamp_shares import StampShare
from changelog.connectors.terminal import safe

_ROWS_MAX = 20


def stamps(shares: Sequence[StampShare]) -> Grid:
    """Returns a table with a row for each pair of an entity and a service: the 20 pairs with the most changes."""
    changes = sum(share.changes for share in shares)
    title = Text(f" \nstamps of the newest {changes:,} changes", style="not italic")
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", title=title, title_justify="left")
    grid.add_column("entity", style="bold", overflow="fold")
    grid.add_column("service", overflow="fold")
    for name in ("changes", "application", "session only", "none"):
        grid.add_column(name, justify="right")
    largest_shares = sorted(sorted(shares, key=lambda share: -share.changes)[:_ROWS_MAX], key=shares.index)
    for share in largest_shares:
        parts = (share.application, share.session, share.none)
        percentages = (f"{round(100 * part / share.changes)} %" if part else "·" for part in parts)
        grid.add_row(safe(share.entity), safe(share.service), f"{share.changes:,}", *percentages)
    if len(shares) > len(largest_shares):
        grid.add_row("…", f"and {len(shares) - len(largest_shares)} more")
    return grid
