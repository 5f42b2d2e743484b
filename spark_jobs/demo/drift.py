"""Runs the demo's chapter on drift: alters rows in the changelog's files, finds these rows by a comparison with the
table, and repairs them.
"""

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
"""The folder of the reports, in the demo's folder."""

MADE_UP = "999999"
"""The key of an order that never existed."""

AMOUNT = "1.00"
"""The amount that is written into the edited order."""

_Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """The keys of the orders that were altered in the changelog's files."""

    edited: str
    lost: str
    extra: str

    @property
    def kinds(self) -> Mapping[str, str]:
        """The kind of drift that a comparison must report, by key."""
        return {self.edited: "changed", self.lost: "missing", self.extra: "extra"}


def drift(scene: Scene) -> Mapping[str, str]:
    """Alters the changelog's files. Shows that a comparison finds the differences, and that the running service repairs
    them.
    """
    story = scene.story
    reports = story.folder / DRIFT
    planted = plant(story.folder / "data" / "changelog", story.log)
    story.watch.say(
        "Somebody edits one order in the changelog's files, loses another and makes up a third. `changelog run` keeps"
        " running while the changelog is compared with the table:"
    )
    with serving(story.config) as service:
        first = scene.run(detect_drift.JOB, "--entities", "order", "--out", str(reports))
        samples = _samples(first)
        if {sample["key"]: sample["kind"] for sample in samples} != planted.kinds or first["drifted"] != len(
            planted.kinds
        ):
            raise ChangelogError(Kind.DIVERGED, "the comparison found other differences than those that were planted")
        _show(scene, samples)
        story.watch.lap(
            f"found these three, and nothing else, in {first['sourceRows']:,} orders; see the page {first['report']}"
        )
        story.console.print()
        _republish(scene, Path(first["report"]).with_name("report.json"))
        second = scene.run(detect_drift.JOB, "--entities", "order", "--out", str(reports))
        service.stop()
    if second["verdict"] != "clean":
        raise ChangelogError(Kind.DIVERGED, "the orders still drift after their repair")
    story.watch.lap(
        f"verified: {second['sourceRows']:,} orders, no drift; the log has the repairs as messages with `read` and"
        " `delete`"
    )
    return {f"{DRIFT}/latest/report.html": "the newest drift report"}


def plant(path: Path, log: Log) -> Planted:
    """Edits one order in the archive of the file log at `path`. Turns the row of another order, which is then lost,
    into that of an order that never existed. So the archive keeps its number of rows.
    """
    rows_of_key = Counter(key for batch in log.read(entity="order") for key in batch.column("key").to_pylist())
    file = next(path / entry.path for entry in (newest(local(path)) or NOTHING).files if entry.entity == "order")
    with pq.ParquetFile(file) as parquet:
        file_rows = parquet.read().cast(SCHEMA)
    keys_read = file_rows.filter(pc.equal(file_rows.column("op"), Op.READ.value)).column("key").to_pylist()
    edited, lost = [key for key in keys_read if rows_of_key[key] == 1][:2]
    planted = Planted(edited=edited, lost=lost, extra=MADE_UP)
    _rewrite(file, [_altered(row, planted) for row in file_rows.to_pylist()])
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
    temporary = file.with_name("_beside")
    pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), temporary, write_page_checksum=True)
    shutil.copymode(file, temporary)
    temporary.replace(file)


def _samples(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    report = json.loads(Path(summary["report"]).with_name("report.json").read_bytes())
    samples: list[Mapping[str, Any]] = report["entities"]["order"]["samples"]
    return samples


def _show(scene: Scene, samples: Sequence[Mapping[str, Any]]) -> None:
    table = columns(
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
        table.add_row(f"   {sample['key']}", kind, name, values["source"], values["changelog"], by)
    scene.story.console.print(table)


def _republish(scene: Scene, report: Path) -> None:
    """Sends a signal as an operator would. The running service finds the signal in the database's log, and publishes
    the keys again.
    """
    scene.story.watch.say("A signal in the database's own log asks the service to publish these keys again:")
    options = ["republish", "order", "--report", str(report)]
    scene.show("changelog", *options)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        code = cli.main([options[0], "--config", str(scene.story.config), *options[1:]])
    if code != 0:
        last = output.getvalue().strip().splitlines()[-1:] or [f"exit code {code}"]
        raise ChangelogError(Kind.PRECONDITION, f"republish failed: {last[0]}")
