"""`changelog check`: tests every precondition of the service, and names a fix for each failed test."""

import argparse
import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.config import Config, FilesConfig, KafkaConfig
from changelog.connectors.extras import installation
from changelog.connectors.findings import Finding, Status
from changelog.connectors.sources import Database, TableInfo
from changelog.connectors.terminal import safe
from changelog.connectors.wiring import entities
from changelog.connectors.wiring.entities import table_text
from changelog.connectors.wiring.sinks import kafka_needed, open_log
from changelog.connectors.wiring.sources import database
from changelog.connectors.wiring.status import probe
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError

REGISTER = "`changelog schemas register` shows the registry's verdict; with --yes, it registers the schemas"

FREE_BYTES_MIN = 1 << 30

CLOCKS_APART_S_MAX = 60.0

TABLES_NAMED_MAX = 20

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "bold red")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog check`."""
    parser.add_argument("--fix", action="store_true", help="apply the safe fixes, and check again")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the findings. Returns 1 if one of them says that the service would stop, otherwise 0."""
    settings = config.load(arguments.config, os.environ)
    console = show.console()
    source = database(settings)
    findings = all_findings(source, settings)
    if arguments.fix:
        fix(source, findings, show.console(stderr=arguments.json))
        findings = all_findings(source, settings)
    if arguments.json:
        print(msgspec.json.encode([asdict(finding) for finding in findings]).decode())
    else:
        print_findings(console, findings)
    return 1 if any(finding.status == "fail" for finding in findings) else 0


def all_findings(source: Database, settings: Config) -> list[Finding]:
    """Tests the configuration, the source and the sink, and returns a finding for each test."""
    tables = source.tables()
    entity_failures: list[Finding] = []
    resolved = []
    try:
        resolved = entities.resolve(settings, tables)
    except ChangelogError as error:
        entity_failures = [
            Finding(name="entities", status="fail", message=line.strip(), hint=error.hint)
            for line in error.message.splitlines()
        ]
    checkpoint, stored_at = _stored(settings)
    hold, answers = source.hold(), probe(settings)
    running = bool(answers) or (hold is not None and hold.reader is not None)
    lag_s = answers.get("lag_seconds", None if stored_at is None else time.time() - stored_at)
    entity_names = () if checkpoint is None else checkpoint.settings.keys()
    sink = sink_findings(settings, resolved, running=running, begun_entities=entity_names, lag_s=lag_s)
    stop_results = [] if checkpoint is None or running else stop_findings(checkpoint)
    ahead_s = source.clock_ahead_s()
    clocks = [] if ahead_s is None else [clock_finding(ahead_s)]
    state = () if settings.state is None else state_findings(settings.state.path)
    other_findings = [tables_finding(resolved, tables), *clocks, *entity_failures]
    return [*source.check(resolved, checkpoint), *other_findings, *sink, *state, *stop_results]


def tables_finding(resolved: Sequence[Entity], tables: Sequence[TableInfo]) -> Finding:
    """Returns a finding that names the tables that are not published: somebody may have forgotten one of them."""
    published_tables = {entity.table for entity in resolved}
    names = [(table.schema, table.name) for table in tables]
    left_out = sorted(table_text(name) for name in names if name not in published_tables)
    if not left_out:
        return Finding(name="tables", status="ok", message="all are published")
    further = len(left_out) - TABLES_NAMED_MAX
    names_text = ", ".join(left_out[:TABLES_NAMED_MAX]) + (f" and {further} more" if further > 0 else "")
    return Finding(name="tables", status="ok", message=f"not published: {names_text}")


def clock_finding(ahead_s: float) -> Finding:
    """Compares this machine's clock with the database's clock, from which commits get their times.

    `ahead_s` says by how many seconds the database's clock is ahead.
    """
    if abs(ahead_s) < CLOCKS_APART_S_MAX:
        return Finding(name="clocks", status="ok", message="the database's clock agrees with this machine's")
    return Finding(
        name="clocks",
        status="warn",
        message=f"the database's clock is {show.duration(timedelta(seconds=abs(ahead_s)))} "
        f"{'ahead of' if ahead_s > 0 else 'behind'} this machine's",
        hint="set both clocks by NTP: the times of commits, and of messages on Kafka, come from the database's clock",
    )


def stop_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """If the service stopped at a change, yields one finding. It says whether the service would stop there again."""
    stop = checkpoint.stop
    if stop is None:
        return
    at = f"the service stopped at {stop.position}"
    decision = checkpoint.decisions.at(stop.position)
    if decision in stop.choices or stop.altered in checkpoint.accepted:
        yield Finding(name="stop", status="ok", message=f"{at}; that change is now accepted")
    else:
        hint = f"{stop.hint}; if the cause has been removed since then, start the service"
        yield Finding(name="stop", status="fail", message=f"{at}: {stop.message}", hint=hint)


def sink_findings(
    settings: Config, resolved: Sequence[Entity], *, running: bool, begun_entities: Collection[str], lag_s: float | None
) -> Iterator[Finding]:
    """Tests whether the changelog can be stored.

    `begun_entities` are the entities that the changelog already has. `lag_s` is the changelog's lag in seconds, None if
    it is unknown.
    """
    if isinstance(settings.sink, FilesConfig):
        yield from folder_findings(settings.sink.path, "sink")
        return
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        yield from kafka.findings(
            settings, settings.sink, resolved, running=running, begun_entities=begun_entities, lag_s=lag_s
        )
        if settings.sink.registry is not None and resolved:
            yield from registry_findings(settings, settings.sink)


def registry_findings(settings: Config, sink: KafkaConfig) -> Iterator[Finding]:
    """Tests whether the registry has the schemas of the live tables, or would accept them."""
    from changelog.connectors.commands.schemas import register  # noqa: PLC0415 - it needs the extra
    from changelog.connectors.kafka.registry import Registry  # noqa: PLC0415

    assert sink.registry is not None
    with closing(Registry(sink.registry, sink.registry_client)) as registry:
        try:
            verdicts = [register.judge(registry, *live) for live in register.live_schemas(settings, ())]
        except ChangelogError as error:
            hint = error.hint or "start the registry, or correct [sink] registry"
            yield Finding(name="registry", status="fail", message=error.message, hint=hint)
            return
    for verdict in verdicts:
        message = f"{verdict.subject} {register.STATES[verdict.state][2]}"
        status: Status = "ok" if verdict.id is not None or _may_register(sink, verdict.state) else "fail"
        yield Finding(name="registry", status=status, message=message, hint=None if status == "ok" else REGISTER)


def _may_register(sink: KafkaConfig, state: str) -> bool:
    return sink.auto_register and state != "incompatible"


def _stored(settings: Config) -> tuple[Checkpoint | None, float | None]:
    """Returns the last checkpoint, and when it was stored, in seconds since 1970.

    Both are None if Kafka cannot be reached; then a finding of `sink_findings` says so.
    """
    try:
        log = open_log(settings)
        return log.checkpoint(), log.stored_at()
    except ChangelogError:
        if isinstance(settings.sink, FilesConfig):
            raise
        return None, None


def state_findings(path: Path) -> Iterator[Finding]:
    """Tests whether the folder `path` can hold the local store of rows that `[state]` asks for."""
    if importlib.util.find_spec("rocksdict") is None:
        message = "[state] is set, and rocksdict is not installed"
        yield Finding(name="state", status="fail", message=message, hint=installation("state"))
        return
    yield from folder_findings(path, "state")


def folder_findings(path: Path, section: str) -> Iterator[Finding]:
    """Tests whether the folder `path`, which is set in `section`, can be written and has enough free space."""
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        hint = f"set another [{section}] path"
        yield Finding(name=section, status="fail", message=f"{nearest} is not a folder", hint=hint)
        return
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        hint = f"give the service the right to write there, or set another [{section}] path"
        yield Finding(name=section, status="fail", message=f"{nearest} cannot be written: {error.strerror}", hint=hint)
        return
    free = shutil.disk_usage(nearest).free
    message = f"{path} can be written; {show.size(free)} are free there"
    if free < FREE_BYTES_MIN:
        yield Finding(name=section, status="warn", message=message, hint="free some space")
    else:
        yield Finding(name=section, status="ok", message=message)


def fix(source: Database, findings: Sequence[Finding], console: Console) -> None:
    """Runs the SQL of every safe fix, and prints each statement before it is run."""

    def announced() -> Iterator[str]:
        for statement in dict.fromkeys(statement for finding in findings for statement in finding.fix):
            console.print(Text(safe(f"{statement};"), style="cyan"), soft_wrap=True)
            yield statement

    source.fix(announced())
    console.print()


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Prints each finding on its own line, its hint below it, and a summary line at the end."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in findings:
        mark, style = MARKS[finding.status]
        text = Text(safe(finding.message), style="default" if finding.status != "fail" else "red")
        if finding.hint:
            text.append(f"\n→ {safe(finding.hint)}", style="cyan")
        grid.add_row(Text(mark, style=style), Text(safe(finding.name)), text)
    console.print(grid)
    console.print(_sum(findings))


def _sum(findings: Sequence[Finding]) -> Text:
    failed = sum(finding.status == "fail" for finding in findings)
    warned = sum(finding.status == "warn" for finding in findings)
    fixable = any(finding.fix for finding in findings)
    text = Text("\n")
    if failed:
        text.append(f"{failed} of {len(findings)} would stop the service", style="bold red")
    else:
        word = "can run" if warned else "ready"
        text.append(f"{word}: {len(findings) - warned} checks passed", style="bold green")
    if warned:
        text.append(f", {show.counted(warned, 'warning')}", style="yellow")
    if fixable:
        text.append("; `changelog check --fix` applies the safe fixes")
    return text
