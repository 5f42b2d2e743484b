"""`changelog history`: prints all changes of one key of an entity."""

import argparse
import os
from collections.abc import Sequence

from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.commands.tail import message_line
from changelog.connectors.sinks import Log
from changelog.connectors.terminal import safe
from changelog.connectors.wiring.sinks import open_log, read_gaps, refuse_other_envelope
from changelog.envelope.columnar import batch
from changelog.envelope.entity import GAPS, OF_CHANGELOG
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text
from changelog.envelope.model import Op, Record, position_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog history`."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity")
    parser.add_argument("key", nargs="+", metavar="KEY", help="the key: one value for each column of the key")
    choosing.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print each message as one line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the changes of the key in their order, and the gaps between them in which changes may have been lost."""
    settings = config.load(arguments.config, os.environ)
    if arguments.entity not in OF_CHANGELOG:
        refuse_other_envelope(settings, "`changelog history`")
    log = open_log(settings)
    entity, key = arguments.entity, key_text(arguments.key)
    changes = [record for rows in log.read(entity=entity, key=key) for record in batch.records(rows)]
    if not changes:
        _refuse_part_of_a_key(log, entity, arguments.key)
        raise ChangelogError(Kind.USAGE, f"{log.where} has no change of {entity} {safe(key)}")
    gone = changes[-1].envelope.provenance.source.op is Op.DELETE  # even if the options leave this change out
    changes = list(filter(choosing.choice_of(arguments), changes))
    records = _with_gaps(log, changes) if changes else []
    if arguments.json:
        for record in records:
            print(message_line(record))
        return 0
    console = show.console()
    console.print(_title(entity, key, changes, gone=gone))
    for line in show.history(records):
        console.print(line)
    return 0


def _with_gaps(log: Log, changes: Sequence[Record]) -> list[Record]:
    """Returns the changes of a key, and all gaps after the first change, in the order of their positions.

    A gap is a record that says that changes of any key may have been lost there.
    """
    if changes[0].entity == GAPS:
        return list(changes)
    begin = position_of(changes[0])
    gaps = [gap for gap in read_gaps(log) if position_of(gap) > begin]
    return sorted([*changes, *gaps], key=position_of)


def _refuse_part_of_a_key(log: Log, entity: str, values: Sequence[str]) -> None:
    """Raises ChangelogError (USAGE) if there are fewer or more values than the key has columns."""
    checkpoint = log.checkpoint()
    columns = [] if checkpoint is None else checkpoint.settings.get(entity, {}).get("key", [])
    if columns and len(columns) != len(values):
        raise ChangelogError(
            Kind.USAGE,
            f"the key of {entity} has {_counted(len(columns), 'column')}, not {len(values)}",
            hint=f"give the values of {', '.join(columns)}, in this order",
        )


def _title(entity: str, key: str, changes: Sequence[Record], *, gone: bool) -> Text:
    title = Text(f"{entity} {safe(key)}", style="bold")
    title.append(f"  {_counted(len(changes), 'change')}", style="not bold")
    sources = [record.envelope.provenance.source for record in changes]
    if sources:
        stamps = [
            change.envelope.provenance for change in changes if change.envelope.provenance.source.op is not Op.READ
        ]
        services = dict.fromkeys(provenance.stamp.service_name for provenance in stamps)
        if services:
            title.append(safe(f" by {', '.join(services)}"), style="not bold")
        if len(sources) > 1:
            span = sources[-1].committed_at - sources[0].committed_at
            title.append(f" in {show.duration(span)}", style="not bold")
        if gone:
            title.append("; it is gone now", style="not bold red")
    return title.append("\n")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
