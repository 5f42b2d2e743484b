"""Reads what `changelog status` and the console show: how far the changelog reaches, and what the service waits for."""

import http.client
import json
import re
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.capture.tables.table_progress import pages_read
from changelog.connectors.config import OWN_ENVELOPE, Config
from changelog.connectors.history.stamp_shares import StampShare, stamp_shares
from changelog.connectors.sinks import Log
from changelog.connectors.sources import Hold, SourceStatus
from changelog.connectors.wiring.entities import default_stamps
from changelog.connectors.wiring.sinks import open_log
from changelog.connectors.wiring.sources import database
from changelog.envelope.checkpoint import GENERATIONS, Checkpoint
from changelog.envelope.errors import ChangelogError

PROBE_TIMEOUT_S = 1.0

_FIGURES = re.compile(r"^changelog_(lag_\w+|state_bytes|state_restored_rows_total) (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changelog:
    """What the changelog's sink reports.

    `counts` has, for each entity, the number of messages by op (see `Log.counts`). `stored_at` is the time of the last
    commit, in seconds since 1970. If there is no commit yet, or the sink does not answer, all fields are empty or None.
    """

    checkpoint: Checkpoint | None = None
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    shares: Sequence[StampShare] = ()
    stored_at: float | None = None


def read_status(settings: Config, *, counted: bool = True) -> dict[str, Any]:
    """Returns the object that `changelog status --json` prints.

    If the source or the sink does not answer, `problems` has a sentence about that, and the members that the answer
    would fill are null or empty. `entities` has the number of messages of each entity, as `Log.counts` returns it.
    `stamps` says who stamped the newest changes; its elements have the members of `StampShare`. `entities` and `stamps`
    are empty unless `counted`, because counting takes long in a large changelog. `state` is there only if the
    configuration has a [state], and `generations` only if an entity was repartitioned. `generations` has the topics of
    each such entity, as the checkpoint lists them.

    `lag` has three numbers, each null if it is unknown. `bytes`: how much of the server's log is not in the changelog
    yet. `seconds`: the lag that the service measures; if it does not run, the time since the last durable commit, or 0
    if `bytes` is 0. `xids`: the age, in transaction ids, of the oldest state of the catalogue that the server keeps
    because of the slot.
    """
    problems: list[str] = []
    changelog = _read_changelog(settings, problems, counted=counted)
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
        "repairs": _repairs(checkpoint),
        **_generations(checkpoint),
        "entities": changelog.counts,
        "stamps": [asdict(share) for share in changelog.shares],
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


def _read_changelog(settings: Config, problems: list[str], *, counted: bool) -> _Changelog:
    """Reads what the sink reports. If the sink does not answer, adds a problem to `problems` and returns no values."""
    try:
        log = open_log(settings)
        counts = log.counts() if counted else {}
        changelog = _Changelog(checkpoint=log.checkpoint(), counts=counts, stored_at=log.stored_at())
    except ChangelogError as error:
        problems.append(str(error))
        return _Changelog()
    try:
        return replace(changelog, shares=read_shares(settings, log, counts))
    except ChangelogError as error:
        problems.append(str(error))
        return changelog


def read_shares(settings: Config, log: Log, entities: Collection[str]) -> Sequence[StampShare]:
    """Counts the stamps of the newest changes of `entities`, the entities of the changelog.

    The result is empty if the configured envelope is not our own, because other envelopes have no stamps.
    """
    if not entities or settings.envelope != OWN_ENVELOPE:
        return ()
    return stamp_shares(log, defaults=default_stamps(settings, entities))


def _read_source(settings: Config, changelog: _Changelog, problems: list[str]) -> SourceStatus | None:
    """Returns what the database reports. If it does not answer, adds a problem to `problems` and returns None."""
    checkpoint = changelog.checkpoint
    try:
        return database(settings).status("" if checkpoint is None else checkpoint.through, checkpoint)
    except ChangelogError as error:
        problems.append(str(error))
        return None


def _is_lost(hold: Hold | None, checkpoint: Checkpoint | None) -> bool:
    """Returns whether the changelog has a checkpoint, but cannot continue: the replication slot or other `Hold` is
    gone, or the server has removed a part of its log that the service has not read.
    """
    return checkpoint is not None and (hold is None or hold.is_lost)


def probe(settings: Config) -> dict[str, Any]:
    """Asks the running service for its state, over HTTP. Returns an empty mapping if it does not answer.

    Another program may listen at the address, so an answer that is not from a service counts as no answer.

    The mapping has the service's `phase`. It also has these members if the service reports them:
    - `lag_bytes` and `lag_seconds`; `state_bytes` and `state_restored_rows_total`.
    - `waits_for`: the ids of the transactions that must end before a table can be read.
    - `waiting`: the reason why the database server sends nothing.
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

    `complete` tells whether the table was read to the end. The table has `pages` pages; the rows of `pages_done` of
    them are published. `stale` names the columns whose values in older messages differ from the values in the table.
    """
    for name, progress in checkpoint.windows.items() if checkpoint else ():
        pages_done, pages = pages_read(progress)
        stale = list(progress.get("stale", ()))
        yield name, {"complete": progress["complete"], "pages_done": pages_done, "pages": pages, "stale": stale}


def repair_progress(checkpoint: Checkpoint, entity: str) -> str:
    """Returns a text for people that says how far the repair of the entity is."""
    return _repair_progress(Repairs.parse(checkpoint.repairs), checkpoint, entity)


def _repair_progress(repairs: Repairs, checkpoint: Checkpoint, entity: str) -> str:
    repair = repairs.open.get(entity)
    if entity in repairs.paused:
        return "paused"
    match None if repair is None else repair.stage:
        case "table":
            pages_done, pages = pages_read(checkpoint.windows[entity])
            return f"the table is read: {100 * pages_done // pages} %"
        case "keys":
            assert repair is not None
            return f"{len(repair.keys):,} keys are looked up"
        case "sweep":
            return "the changelog is searched for keys that the table lacks"
    return "done"


def _generations(checkpoint: Checkpoint | None) -> dict[str, Any]:
    generations = {} if checkpoint is None else checkpoint.sink.get(GENERATIONS, {})
    return {GENERATIONS: generations} if generations else {}


def _repairs(checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Returns the repairs that `read_status` reports.

    `open` has an object for each entity that is being repaired: what remains to be done, and the ids of the signals
    that asked for the repair. `paused` lists the entities whose tables are not read until `changelog signal resume`.
    """
    if checkpoint is None:
        return {"open": {}, "paused": []}
    repairs = Repairs.parse(checkpoint.repairs)
    open_repairs = {}
    for entity, repair in sorted(repairs.open.items()):
        pages_done, pages = pages_read(checkpoint.windows[entity])
        open_repairs[entity] = {
            "stage": repair.stage,
            "rebuild": repair.sweep,
            "since": repair.start,
            "pages_done": pages_done,
            "pages": pages,
            "keys_left": len(repair.keys),
            "keys_absent": len(repair.absent),
            "ids": list(repair.ids),
            "progress": _repair_progress(repairs, checkpoint, entity),
        }
    return {"open": open_repairs, "paused": sorted(repairs.paused)}
