"""`changelog history`: all changes of one entity."""

import argparse
import os
from collections.abc import Sequence

from rich.text import Text

from connectors import config, show
from connectors.commands.tail import message_line
from connectors.stores import open_log
from envelope import batch
from envelope.key import key_text
from envelope.model import Op, Record


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `changelog history` takes."""
    parser.add_argument("entity", metavar="ENTITY")
    parser.add_argument("key", nargs="+", metavar="KEY", help="the key; of several columns, each in its turn")
    parser.add_argument("--json", action="store_true", help="print each message as a line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints every change of the key, the first one first."""
    log = open_log(config.load(arguments.config, os.environ))
    key = key_text(arguments.key)
    found = [record for rows in log.read(entity=arguments.entity, key=key) for record in batch.records(rows)]
    if arguments.json:
        for record in found:
            print(message_line(record))
        return 0
    console = show.console()
    console.print(_title(arguments.entity, key, found))
    for line in show.history(found):
        console.print(line)
    return 0


def _title(entity: str, key: str, found: Sequence[Record]) -> Text:
    title = Text(f"{entity} {show.safe(key)}", style="bold")
    title.append(f"  {len(found)} {'change' if len(found) == 1 else 'changes'}", style="not bold")
    sources = [record.envelope.provenance.source for record in found]
    if sources:
        stamps = [each.envelope.provenance for each in found if each.envelope.provenance.source.op is not Op.READ]
        services = dict.fromkeys(provenance.stamp.service_name for provenance in stamps)
        if services:
            title.append(show.safe(f" by {', '.join(services)}"), style="not bold")
        if len(sources) > 1:
            span = sources[-1].committed_at - sources[0].committed_at
            title.append(f" in {show.duration(span)}", style="not bold")
        if sources[-1].op is Op.DELETE:
            title.append("; it is gone now", style="not bold red")
    return title.append("\n")
