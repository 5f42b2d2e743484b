"""Makes drift reports as the drift job passes them to `finish`. Also writes the files of a run into a folder."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from changelog.spark_jobs.drift.report import Policy, finish, read_earlier, write

JSON = dict[str, Any]

PROVENANCE = {
    "apiVersion": "v2",
    "serviceName": "order-api",
    "identifier": "req-8f1c",
    "source": {
        "connector": "postgres",
        "name": "booking",
        "database": "app",
        "table": "public.orders",
        "op": "update",
        "position": "00000001/0000000001781838/00000006",
        "transaction": "765",
        "committedAt": "2026-11-20T22:41:07.886044Z",
    },
}


def entity(**fields: Any) -> JSON:
    """Returns the part of a report about an entity that was compared. The entity has no drift unless `fields` says so.

    The number of drifted keys, their share of the source's rows (`ppm`, in millionths) and the verdict are computed.
    """
    members: JSON = {
        "table": "public.orders",
        "key": ["id"],
        "verdict": "clean",
        "why": None,
        "sourceRows": 1_000_000,
        "changelogRows": 1_000_000,
        "missing": 0,
        "extra": 0,
        "changed": 0,
        "columns": {},
        "schemaChanged": {},
        "unknown": {},
        "writers": [],
        "incidents": None,
        "samples": [],
        "sampled": None,
        "seconds": 3.2,
        **fields,
    }
    drifted = None if members["missing"] is None else members["missing"] + members["extra"] + members["changed"]
    ppm = None if drifted is None else drifted / max(members["sourceRows"], 1) * 1e6
    verdict = "drift" if drifted and members["verdict"] == "clean" else members["verdict"]
    return {"drifted": drifted, "ppm": ppm, **members, "verdict": verdict}


def skipped(**fields: Any) -> JSON:
    """Returns the part of a report about an entity that was not compared."""
    unknown = dict.fromkeys(("sourceRows", "changelogRows", "missing", "extra", "changed", "seconds"))
    return entity(verdict="skipped", **{**unknown, **fields})


def report(run: int = 1, entities: Mapping[str, JSON] | None = None, **fields: Any) -> JSON:
    """Returns the report of a run in the night of November `run`, 2026."""
    day = f"2026-11-{run:02}"
    return {
        "format": 1,
        "kind": "changelog-drift-report",
        "run": {
            "id": f"{day.replace('-', '')}T031000Z-3f2a",
            "startedAt": f"{day}T03:10:00Z",
            "finishedAt": f"{day}T03:10:12Z",
            "seconds": 12.3,
            "version": "0.1.0",
            "name": "booking",
        },
        "verdict": "clean",
        "exact": True,
        "why": None,
        "source": {"kind": "postgres", "database": "app", "server": "18.1", "name": "booking"},
        "changelog": {"kind": "files", "where": "the file log in data/changelog"},
        "fence": {
            "snapshot": "123:130:124,126",
            "lsn": "0/16B3748",
            "takenAt": f"{day}T03:10:01Z",
            "position": "00000001/0000000001781838/00000006",
            "caughtUpAt": f"{day}T03:10:02Z",
            "waitedSeconds": 0.4,
        },
        "entities": {"order": entity()} if entities is None else dict(entities),
        "keys": "keys.jsonl",
        **fields,
    }


def put_keys(folder: Path, run_report: Mapping[str, Any], keys: Iterable[tuple[str, str]]) -> None:
    """Writes the drifted `keys` (entity and key) of a run into the run's folder, in the given order."""
    run = folder / run_report["run"]["id"]
    run.mkdir(parents=True)
    lines = [
        {"entity": entity, "key": key, "kind": "changed", "columns": ["amount"], "position": None}
        for entity, key in keys
    ]
    (run / "keys.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def night(folder: Path, run_report: Mapping[str, Any], keys: Iterable[tuple[str, str]] = ()) -> JSON:
    """Writes all files of a run: its keys and its report. Returns the finished report."""
    put_keys(folder, run_report, keys)
    finished = finish(run_report, {"order": Policy()}, read_earlier(folder), folder=folder)
    write(folder, finished)
    return finished
