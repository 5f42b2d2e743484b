"""The demo's chapter on drift: it is planted in the files, found by key and column, and repaired."""

import io
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.text import Text

from changelog.connectors import cli
from changelog.connectors.demo.service import serving
from changelog.connectors.sinks import Log
from changelog.envelope import canonical
from changelog.envelope.columnar.batch import SCHEMA
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.spark_jobs import detect_drift
from changelog.spark_jobs.demo.scene import Scene, columns
from changelog.spark_jobs.storage.local_store import local
from changelog.spark_jobs.storage.manifest import NOTHING, newest

DRIFT = "drift"
"""Where the reports go, in the demo's folder."""

MADE_UP = "999999"
"""The key of an order that never was."""

AMOUNT = "1.00"

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """The keys of orders whose rows were altered in the copy of the changelog."""

    edited: str
    lost: str
    extra: str

    @property
    def kinds(self) -> Mapping[str, str]:
        """The verdict that a comparison must give, by key."""
        return {self.edited: "changed", self.lost: "missing", self.extra: "extra"}


def drift(scene: Scene) -> Mapping[str, str]:
    """Tampers with the changelog's files; the comparison finds it, and the running service repairs it."""
    story = scene.story
    reports = story.folder / DRIFT
    planted = plant(story.folder / "data" / "changelog", story.log)
    story.watch.say(
        "Somebody edits one order in the changelog's files, loses another and makes up a third. `changelog run` goes on"
        " beside it, and the table is compared:"
    )
    with serving(story.config) as service:
        first = scene.run(detect_drift.JOB, "--entities", "order", "--out", str(reports))
        samples = _samples(first)
        if {sample["key"]: sample["kind"] for sample in samples} != planted.kinds or first["drifted"] != len(
            planted.kinds
        ):
            raise ChangelogError(Kind.DIVERGED, "the drift that was planted is not the drift that was found")
        _show(scene, samples)
        story.watch.lap(
            f"found, and nothing else, in {first['sourceRows']:,} orders; the page to look at: {first['report']}"
        )
        story.console.print()
        _republish(scene, Path(first["report"]).with_name("report.json"))
        second = scene.run(detect_drift.JOB, "--entities", "order", "--out", str(reports))
        service.stop()
    if second["verdict"] != "clean":
        raise ChangelogError(Kind.DIVERGED, "the orders still drift after their repair")
    story.watch.lap(
        f"verified: {second['sourceRows']:,} orders, no drift; what the service published again stands in the log as"
        " `read` and `delete`"
    )
    return {f"{DRIFT}/latest/report.html": "the last drift report, of those in the folder"}


def plant(path: Path, log: Log) -> Planted:
    """Alters the archive of the file log at `path` alone, so that it holds as many rows as before."""
    rows = Counter(key for batch in log.read(entity="order") for key in batch.column("key").to_pylist())
    file = next(path / entry.path for entry in (newest(local(path)) or NOTHING).files if entry.entity == "order")
    with pq.ParquetFile(file) as parquet:
        rows_read = parquet.read().cast(SCHEMA)
    read = rows_read.filter(pc.equal(rows_read.column("op"), Op.READ.value)).column("key").to_pylist()
    edited, lost = [key for key in read if rows[key] == 1][:2]
    planted = Planted(edited=edited, lost=lost, extra=MADE_UP)
    _rewrite(file, [_altered(row, planted) for row in rows_read.to_pylist()])
    return planted


def _altered(row: _Row, planted: Planted) -> _Row:
    if row["key"] not in (planted.edited, planted.lost):
        return row
    state = json.loads(row["current"])
    if row["key"] == planted.edited:
        state["amount"] = AMOUNT
        return {**row, "current": json.dumps(state, separators=(",", ":"))}
    state["id"] = int(planted.extra)
    return {**row, "key": planted.extra, "current": json.dumps(state, separators=(",", ":"))}


def _rewrite(file: Path, rows: Sequence[_Row]) -> None:
    beside = file.with_name("_beside")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), beside, write_page_checksum=True)
    shutil.copymode(file, beside)
    beside.replace(file)


def _samples(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    report = json.loads(Path(summary["report"]).with_name("report.json").read_bytes())
    samples: list[Mapping[str, Any]] = report["entities"]["order"]["samples"]
    return samples


def _show(scene: Scene, samples: Sequence[Mapping[str, Any]]) -> None:
    shown = columns(
        "   order", "", "column", ("in the table", "right"), ("in the changelog", "right"), "last written by"
    )
    for sample in samples:
        by = (sample["provenance"] or {}).get("serviceName", "")
        name, values = "(all)", {"source": "there", "changelog": "there"}
        match sample["kind"]:
            case "changed":
                [(name, pair)] = sample["columns"].items()
                values = {side: canonical.dumps(value).decode() for side, value in pair.items()}
            case "missing":
                values["changelog"] = "-"
            case _:
                values["source"] = "-"
        kind = Text(sample["kind"], style="red")
        shown.add_row(f"   {sample['key']}", kind, name, values["source"], values["changelog"], by)
    scene.story.console.print(shown)


def _republish(scene: Scene, report: Path) -> None:
    """Sends the signal as an operator would; the running service obeys it at a place in the log."""
    scene.story.watch.say("The service is asked, by a message in the database's own log, to publish these keys again:")
    options = ["republish", "order", "--report", str(report)]
    scene.show("changelog", *options)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = cli.main([options[0], "--config", str(scene.story.config), *options[1:]])
    if code != 0:
        last = output.getvalue().strip().splitlines()[-1:] or [f"exit code {code}"]
        raise ChangelogError(Kind.PRECONDITION, f"republish failed: {last[0]}")
