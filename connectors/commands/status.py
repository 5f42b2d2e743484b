"""`changelog status`: how far the changelog is, and what waits for it."""

import argparse
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import msgspec
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from connectors import config, show
from connectors.commands import signalling
from connectors.config import Config
from connectors.sinks import MESSAGES, Log
from connectors.sources.postgres.connection import connect, translated
from connectors.sources.postgres.setup import SlotState, slot_state
from connectors.stores import open_log
from envelope.checkpoint import Checkpoint, lsn_text
from envelope.model import Op

PROBE_TIMEOUT_S = 1.0
BAR_WIDTH = 30

_LAG = re.compile(r"^changelog_(lag_\w+) (\S+)$", re.MULTILINE)

_SERVER = """
SELECT (pg_current_wal_lsn() - '0/0')::int8,
    (SELECT age(catalog_xmin) FROM pg_replication_slots WHERE slot_name = %s)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog status` takes."""
    parser.add_argument("--json", action="store_true", help="print it as a JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the state of source, service and sink; holds nothing up."""
    settings = config.load(arguments.config, os.environ)
    found = read_status(settings)
    if arguments.json:
        print(msgspec.json.encode(found).decode())
        return 0
    console = show.console()
    console.print(_summary(found))
    if found["windows"]:
        console.print(_windows(found["windows"]))
        for line in _stale(found["windows"]):
            console.print(line)
    for line in _repairs(found["repairs"]):
        console.print(line)
    if found["entities"]:
        console.print(_counts(found["entities"]))
    return 0


def read_status(settings: Config) -> dict[str, Any]:
    """What `--json` prints; `entities` are the log's `counts`.

    `lag`: `bytes` of log behind the server's end, `seconds` since the last durable commit (0 without a lag), `xids`
    that the slot holds the server's catalogue back by; each null while unknown.
    """
    log = open_log(settings)
    checkpoint = log.checkpoint()
    with connect(settings.source.dsn) as connection, translated("reading the status"):
        slot = slot_state(connection, settings.slot)
        end, xids = connection.execute(_SERVER, [settings.slot]).fetchone() or (0, None)
    running = slot is not None and slot.active_pid is not None
    said = probe(settings) if running else {}
    behind = None if checkpoint is None else max(end - checkpoint.through_lsn, 0)
    return {
        "name": settings.name,
        "service": {"running": running, "phase": said.get("phase"), "waits_for": said.get("waits_for", [])},
        "position": str(checkpoint.position) if checkpoint and checkpoint.position else None,
        "through_lsn": lsn_text(checkpoint.through_lsn) if checkpoint else None,
        "lag": {**_lag(log, said, behind), "xids": xids},
        "slot": _slot(settings, slot),
        "windows": dict(_progress(checkpoint)),
        "repairs": signalling.as_json(checkpoint),
        "entities": log.counts(),
    }


def probe(settings: Config) -> dict[str, Any]:
    """What the service says of itself where it listens: `phase`, `lag_bytes`, `lag_seconds`, and `waits_for`, the
    transactions that keep a table from being read; empty when it does not.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{settings.service.listen}/live", timeout=PROBE_TIMEOUT_S) as answer:
            said = json.load(answer)
        with direct.open(f"http://{settings.service.listen}/metrics", timeout=PROBE_TIMEOUT_S) as answer:
            lags = dict(_LAG.findall(answer.read().decode()))
    except (OSError, ValueError):
        return {}
    if said.get("name") != settings.name:
        return {}
    waits = {"waits_for": said["waits_for"]} if "waits_for" in said else {}
    return {"phase": said["phase"], **waits, **{name: float(value) for name, value in lags.items()}}


def _lag(log: Log, said: Mapping[str, Any], behind: int | None) -> dict[str, Any]:
    """As the running service has it; else against the server's end of log, and since the last commit."""
    if "lag_bytes" in said:
        return {"bytes": int(said["lag_bytes"]), "seconds": said["lag_seconds"]}
    if not behind:
        return {"bytes": behind, "seconds": behind}
    stored_s = log.stored_at()
    return {"bytes": behind, "seconds": None if stored_s is None else max(time.time() - stored_s, 0.0)}


def _slot(settings: Config, slot: SlotState | None) -> dict[str, Any] | None:
    if slot is None:
        return None
    return {
        "name": settings.slot,
        "active_pid": slot.active_pid,
        "status": slot.wal_status,
        "retained_bytes": slot.retained_bytes,
        "confirmed_lsn": lsn_text(slot.confirmed_flush),
    }


def _progress(checkpoint: Checkpoint | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """By entity, how much of its table is published: `complete`, and heap pages done and in all.

    `stale` are the columns whose values in rows published before are no longer the table's.
    """
    for name, stored in checkpoint.windows.items() if checkpoint else ():
        done, total = show.pages_read(stored)
        stale = list(stored.get("stale", ()))
        yield name, {"complete": stored["complete"], "pages_done": done, "pages": total, "stale": stale}


def _summary(found: Mapping[str, Any]) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    service, slot, lag = found["service"], found["slot"], found["lag"]
    running = Text("● ", style="green" if service["running"] else "red")
    running.append(service["phase"] or ("running" if service["running"] else "stopped"), style="default")
    grid.add_row(Text(found["name"], style="bold not dim"), running)
    if service["waits_for"]:
        ids = ", ".join(map(str, service["waits_for"]))
        grid.add_row(
            "waits for", f"the end of transaction {ids}, before a table is read (pg_stat_activity.backend_xid)"
        )
    grid.add_row("position", found["position"] or "nothing is published yet")
    grid.add_row("lag", _lag_text(lag))
    if slot is None:
        grid.add_row("slot", "there is none yet; `changelog run` makes it")
    else:
        retained = "" if slot["retained_bytes"] is None else f", retains {show.size(slot['retained_bytes'])} of log"
        holder = f"read by process {slot['active_pid']}" if slot["active_pid"] else "nobody reads it"
        style = "default" if slot["status"] in ("reserved", "extended") else "bold red"
        grid.add_row("slot", Text(f"{slot['name']} is {slot['status']}, {holder}{retained}", style=style))
    return grid


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
        done, total = progress["pages_done"], progress["pages"]
        word = Text("read", style="green") if progress["complete"] else Text(f"{100 * done // total} %", style="yellow")
        grid.add_row(Text(name, style="bold"), ProgressBar(total=total, completed=done, width=BAR_WIDTH), word)
    return grid


def _stale(windows: Mapping[str, Mapping[str, Any]]) -> Iterator[Text]:
    """A line for each entity whose rows are stale, with the way out."""
    for name, progress in sorted(windows.items()):
        if progress["stale"]:
            columns = show.safe(", ".join(progress["stale"]))
            yield Text(
                f"{name}: older rows do not hold what the table does: {columns}; "
                f"`changelog republish {name} --all` has it read again",
                style="yellow",
            )


def _repairs(repairs: Mapping[str, Any]) -> Iterator[Text]:
    """A line for each entity that is repaired or not read for now."""
    for name, repair in repairs["open"].items():
        kind = "rebuild" if repair["rebuild"] else "republish"
        yield Text(f"{name}: {kind}: {repair['progress']}", style="yellow")
    for name in repairs["paused"]:
        yield Text(f"{name}: its table is not read until `changelog signal resume {name}`", style="yellow")


def _counts(entities: Mapping[str, Mapping[str, int]]) -> Grid:
    grid = Grid(box=None, padding=(0, 2, 0, 0), header_style="dim", title=" ", title_justify="left")
    grid.add_column("entity", style="bold")
    if any(MESSAGES in found for found in entities.values()):
        grid.add_column("messages, at most", justify="right")
        for name, found in sorted(entities.items()):
            grid.add_row(name, f"{found[MESSAGES]:,}")
        return grid
    for op in (*Op, "all"):
        grid.add_column(str(op), justify="right")
    for name, ops in sorted(entities.items()):
        numbers = [ops.get(str(op), 0) for op in Op]
        grid.add_row(name, *(f"{number:,}" if number else "·" for number in numbers), f"{sum(numbers):,}")
    return grid
