"""`changelog status`: prints how far the changelog is, and what the service waits for."""

import argparse
import http.client
import json
import os
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.commands import signalling
from changelog.connectors.config import Config
from changelog.connectors.sinks import MESSAGES
from changelog.connectors.sources import Hold, SourceStatus
from changelog.connectors.terminal import safe, say
from changelog.connectors.wiring.sinks import open_log
from changelog.connectors.wiring.sources import database
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError
from changelog.envelope.model import Op

FAILED = 3

PROBE_TIMEOUT_S = 1.0
BAR_WIDTH = 30

_FIGURES = re.compile(r"^changelog_(lag_\w+|state_bytes|state_restored_rows_total) (\S+)$", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog status`."""
    parser.add_argument("--json", action="store_true", help="print the status as a JSON object")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the state of source, service and sink, as far as each answers.

    Returns 3 if the source or the sink does not answer. A service that does not answer is only shown as stopped.
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
    if state["entities"]:
        console.print(_counts(state["entities"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changelog:
    """What the changelog's sink reports.

    `counts` has, for each entity, the number of messages by op (see `Log.counts`). `stored_at` is the time of the last
    commit, in seconds since 1970. If there is no commit yet, or the sink does not answer, all fields are empty or None.
    """

    checkpoint: Checkpoint | None = None
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    stored_at: float | None = None


def read_status(settings: Config) -> dict[str, Any]:
    """Returns the object that `--json` prints.

    If the source or the sink does not answer, `problems` has a sentence about that, and the members that the answer
    would fill are null or empty. `entities` has the number of messages of each entity, as `Log.counts` returns it.
    `state` is there only if the configuration has a [state].

    `lag` has three numbers, each null if it is unknown. `bytes`: how much of the server's log is not in the changelog
    yet. `seconds`: the time since the last durable commit, 0 if `bytes` is 0. `xids`: the age, in transaction ids, of
    the oldest state of the catalogue that the server keeps because of the slot.
    """
    problems: list[str] = []
    changelog = _read_changelog(settings, problems)
    source = _read_source(settings, changelog, problems)
    answers = probe(settings)
    checkpoint, hold = changelog.checkpoint, None if source is None else source.hold
    return {
        "name": settings.name,
        "service": {
            "running": bool(answers) or (hold is not None and hold.reader is not None),
            "phase": answers.get("phase"),
            "waits_for": answers.get("waits_for", []),
            "waiting": answers.get("waiting"),
        },
        "problems": problems,
        "position": str(checkpoint.position) if checkpoint and checkpoint.position else None,
        "through_lsn": database(settings).spell(checkpoint.through) if checkpoint else None,
        "lag": _lag(answers, changelog, source),
        "slot": None if hold is None else _slot(hold),
        "slot_lost": source is not None and _is_lost(hold, checkpoint),
        "windows": dict(_progress(checkpoint)),
        "repairs": signalling.as_json(checkpoint),
        "entities": changelog.counts,
        **({} if settings.state is None else {"state": _state(settings.state.path, answers)}),
    }


def _state(path: Path, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns where the state is, how large it is, and how many rows the running service has read to restore it.

    The figures are null if the service does not run.
    """
    return {
        "path": str(path),
        "bytes": int(answers["state_bytes"]) if "state_bytes" in answers else None,
        "restored_rows": int(answers.get("state_restored_rows_total", 0)) if answers else None,
    }


def _read_changelog(settings: Config, problems: list[str]) -> _Changelog:
    """Reads what the sink reports. If the sink does not answer, adds a problem to `problems` and returns no values."""
    try:
        log = open_log(settings)
        return _Changelog(checkpoint=log.checkpoint(), counts=log.counts(), stored_at=log.stored_at())
    except ChangelogError as error:
        problems.append(str(error))
        return _Changelog()


def _read_source(settings: Config, changelog: _Changelog, problems: list[str]) -> SourceStatus | None:
    """Reads what the database reports; None if it does not answer, which is then added to `problems`."""
    stored = changelog.checkpoint
    try:
        return database(settings).status("" if stored is None else stored.through, stored)
    except ChangelogError as error:
        problems.append(str(error))
        return None


def _is_lost(hold: Hold | None, checkpoint: Checkpoint | None) -> bool:
    """Returns whether the changelog cannot continue: its slot, or a part of the log that the slot needs, is gone."""
    return checkpoint is not None and (hold is None or hold.is_lost)


def probe(settings: Config) -> dict[str, Any]:
    """Asks the running service for its state, over HTTP. Returns an empty mapping if it does not answer.

    Another program may listen at the address, so an answer that is not from a service counts as no answer.

    The mapping has the service's `phase`. It also has these members if the service reports them: `lag_bytes` and
    `lag_seconds`; `state_bytes` and `state_restored_rows_total`; `waits_for`, with the ids of the transactions that
    must end before a table can be read; and `waiting`, the reason why the database server sends nothing.
    """
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{settings.service.listen}/live", timeout=PROBE_TIMEOUT_S) as answer:
            live = json.load(answer)
        with direct.open(f"http://{settings.service.listen}/metrics", timeout=PROBE_TIMEOUT_S) as answer:
            figures = dict(_FIGURES.findall(answer.read().decode()))
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    if not isinstance(live, dict) or live.get("name") != settings.name:
        return {}
    waits = {name: live[name] for name in ("waits_for", "waiting") if name in live}
    return {"phase": live["phase"], **waits, **{name: float(value) for name, value in figures.items()}}


def _lag(answers: Mapping[str, Any], changelog: _Changelog, source: SourceStatus | None) -> dict[str, Any]:
    """Returns the lag, as `read_status` describes it.

    If the service runs, it measures the bytes and seconds. Otherwise the bytes are the distance from the changelog's
    checkpoint to the end of the server's log, and the seconds are the age of that checkpoint.
    """
    xids = None if source is None or source.hold is None else source.hold.xids
    if "lag_bytes" in answers:
        return {"bytes": int(answers["lag_bytes"]), "seconds": answers["lag_seconds"], "xids": xids}
    if changelog.checkpoint is None or source is None:
        return {"bytes": None, "seconds": None, "xids": xids}
    seconds = None if changelog.stored_at is None else max(time.time() - changelog.stored_at, 0.0)
    return {"bytes": source.lag_bytes, "seconds": seconds if source.lag_bytes else 0, "xids": xids}


def _slot(hold: Hold) -> dict[str, Any]:
    return {
        "kind": hold.kind,
        "name": hold.name,
        "active_pid": hold.reader,
        "status": hold.condition,
        "retained_bytes": hold.nbytes,
        "confirmed_lsn": hold.confirmed,
    }


def _progress(checkpoint: Checkpoint | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each entity with the progress of reading its table.

    `complete` tells whether its table was read to the end. `pages_done` and `pages` are the numbers of published pages
    and of all pages. `stale` names the columns whose values in older messages differ from the values in the table.
    """
    for name, progress in checkpoint.windows.items() if checkpoint else ():
        pages_done, pages = pages_read(progress)
        stale = list(progress.get("stale", ()))
        yield name, {"complete": progress["complete"], "pages_done": pages_done, "pages": pages, "stale": stale}


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
        grid.add_row("tables", f"are read once these transactions have ended: {ids} (see pg_stat_activity.backend_xid)")
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
    retained = "" if slot["retained_bytes"] is None else f", retains {show.size(slot['retained_bytes'])} of log"
    holder = f"read by process {slot['active_pid']}" if slot["active_pid"] else "read by no process"
    style = "default" if slot["status"] in ("reserved", "extended", "kept") else "bold red"
    return Text(f"{slot['name']} is {slot['status']}, {holder}{retained}{loss_text}", style=style)


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
    """Yields a line for each entity with stale columns: their names, and the command that publishes present values."""
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
