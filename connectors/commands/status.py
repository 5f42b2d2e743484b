"""`changelog status`: prints how far the changelog reaches, and what the service waits for."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.history.stamp_shares import StampShare
from changelog.connectors.rendering import show_stamps
from changelog.connectors.sinks import MESSAGES
from changelog.connectors.terminal import safe, say
from changelog.connectors.wiring.status import read_status
from changelog.envelope.errors import OVER_GAP
from changelog.envelope.model import Op

FAILED = 3

BAR_WIDTH = 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog status`."""
    parser.add_argument("--json", action="store_true", help="print the status as a JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the states of the source, the service and the sink, as far as these answer.

    Returns 3 if the source or the sink does not answer. If the service does not answer, shows it as stopped.
    """
    settings = config.load(arguments.config, os.environ)
    state = read_status(settings)
    if arguments.json:
        print(msgspec.json.encode(state).decode())
    else:
        _print(show.console(), state)
    for problem in state["problems"]:
        say(f"changelog: {problem}", file=sys.stderr)
    return FAILED if state["problems"] else 0


def _print(console: Console, state: Mapping[str, Any]) -> None:
    console.print(_summary(state))
    if state["windows"]:
        console.print(_windows(state["windows"]))
        for line in _stale(state["windows"]):
            console.print(line)
    for line in _repairs(state["repairs"]):
        console.print(line)
    for line in _generations(state):
        console.print(line)
    if state["entities"]:
        console.print(_counts(state["entities"]))
    if state["stamps"]:
        console.print(show_stamps.stamps([StampShare(**share) for share in state["stamps"]]))


def _summary(state: Mapping[str, Any]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    service = state["service"]
    running = Text("● ", style="green" if service["running"] else "red")
    running.append(service["phase"] or ("running" if service["running"] else "stopped"), style="default")
    grid.add_row(Text(state["name"], style="bold not dim"), running)
    if service["waits_for"]:
        ids = ", ".join(map(str, service["waits_for"]))
        grid.add_row("tables", f"are read when these transactions have ended: {ids} (see pg_stat_activity.backend_xid)")
    if service["waiting"]:
        grid.add_row("database", safe(service["waiting"]))
    if state["through_lsn"] is not None or not state["problems"]:
        grid.add_row("position", state["position"] or "nothing is published yet")
    grid.add_row("lag", _lag_text(state["lag"]))
    if "state" in state:
        nbytes = state["state"]["bytes"]
        size = "" if nbytes is None else f", {show.size(nbytes)}"
        grid.add_row("state", safe(f"in {state['state']['path']}{size}"))
    if (slot := _slot_text(state)) is not None:
        grid.add_row(state["slot"]["kind"] if state["slot"] else "slot", slot)
    return grid


def _slot_text(state: Mapping[str, Any]) -> Text | None:
    slot, loss_text = state["slot"], f"; {OVER_GAP}" if state["slot_lost"] else ""
    if slot is None and loss_text:
        return Text(f"is gone, so the changelog cannot continue{loss_text}", style="bold red")
    if slot is None:
        return None if state["problems"] else Text("does not exist yet; `changelog run` creates it")
    retained_text = "" if slot["retained_bytes"] is None else f", retains {show.size(slot['retained_bytes'])} of log"
    holder = f"read by process {slot['active_pid']}" if slot["active_pid"] else "read by no process"
    style = "default" if slot["status"] in ("reserved", "extended", "kept") else "bold red"
    return Text(f"{slot['name']} is {slot['status']}, {holder}{retained_text}{loss_text}", style=style)


def _lag_text(lag: Mapping[str, Any]) -> str:
    parts = [] if lag["bytes"] is None else [show.size(lag["bytes"])]
    if lag["seconds"] is not None:
        parts.append(show.duration(timedelta(seconds=lag["seconds"])))
    if lag["xids"] is not None:
        parts.append(f"{lag['xids']} xids")
    return " · ".join(parts) or "unknown"


def _windows(windows: Mapping[str, Mapping[str, Any]]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_row("")
    for name, progress in sorted(windows.items()):
        pages_done, pages = progress["pages_done"], progress["pages"]
        word = (
            Text("read", style="green")
            if progress["complete"]
            else Text(f"{100 * pages_done // pages} %", style="yellow")
        )
        grid.add_row(Text(name, style="bold"), ProgressBar(total=pages, completed=pages_done, width=BAR_WIDTH), word)
    return grid


def _stale(windows: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    """Yields a line for each entity with stale columns: their names, and the command that publishes the table again."""
    for name, progress in sorted(windows.items()):
        if progress["stale"]:
            columns = safe(", ".join(progress["stale"]))
            yield Text(
                f"{name}: in older messages these columns no longer have the values of the table: {columns}; "
                f"`changelog republish {name} --all` reads the table again",
                style="yellow",
            )


def _repairs(repairs: Mapping[str, Any]) -> Iterator[Text]:
    """Yields a line for each entity that is being repaired, and for each whose table is not read because of a pause."""
    for name, repair in repairs["open"].items():
        kind = "rebuild" if repair["rebuild"] else "republish"
        yield Text(f"{name}: {kind}: {repair['progress']}", style="yellow")
    for name in repairs["paused"]:
        yield Text(f"{name}: its table is not read until `changelog signal resume {name}`", style="yellow")


def _generations(state: Mapping[str, Any]) -> Iterator[Text]:
    """Yields a line for each repartitioned entity: its present topic, and how far its table is read into this topic."""
    for name, (*earlier, present) in state.get("generations", {}).items():
        progress = state["windows"].get(name)
        if progress is None:  # the entity is no longer configured
            continue
        text = f"{name}: topic {present['topic']} goes on where {earlier[-1]['topic']} ended"
        if progress["complete"]:
            yield Text(f"{text}, and has all rows of the table")
        else:
            percent = 100 * progress["pages_done"] // max(progress["pages"], 1)
            yield Text(f"{text}; the table is read into it: {percent} %", style="yellow")


def _counts(entities: Mapping[str, Mapping[str, int]]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", title=" ", title_justify="left")
    grid.add_column("entity", style="bold")
    if any(MESSAGES in counts for counts in entities.values()):
        grid.add_column("messages (at most)", justify="right")
        for name, counts in sorted(entities.items()):
            grid.add_row(name, f"{counts[MESSAGES]:,}")
        return grid
    for op in (*Op, "all"):
        grid.add_column(str(op), justify="right")
    for name, ops in sorted(entities.items()):
        op_counts = [ops.get(str(op), 0) for op in Op]
        grid.add_row(name, *(f"{count:,}" if count else "·" for count in op_counts), f"{sum(op_counts):,}")
    return grid
