"""`changelog history`: prints all changes of one key of an entity, or the key's state at a moment."""

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from changelog.connectors import config, show
from changelog.connectors.commands import choosing
from changelog.connectors.history import as_json
from changelog.connectors.history.key_blame import KeyState, key_state
from changelog.connectors.history.key_history import key_history
from changelog.connectors.history.refusals import moment_text
from changelog.connectors.rendering.show_state import state
from changelog.connectors.sinks import Log
from changelog.connectors.terminal import json_line, safe
from changelog.connectors.wiring.sinks import open_log, read_gaps, refuse_other_envelope
from changelog.envelope.entity import GAPS, OF_CHANGELOG
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text
from changelog.envelope.model import Op, Record, position_of

_DELETES: Final = frozenset({Op.DELETE, Op.TRUNCATE})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog history`."""
    choosing.add_key(parser)
    parser.add_argument(
        "--at",
        type=choosing.when,
        metavar="WHEN",
        help=f"show the state as of WHEN, and the change that made it; WHEN is {choosing.MOMENT_FORM}",
    )
    choosing.add_arguments(parser)
    parser.add_argument("--patch", action="store_true", help="show each change as a JSON Patch (RFC 6902)")
    parser.add_argument("--json", action="store_true", help="print each message as one line of JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Prints the changes of the key, and all gaps (where changes may have been lost) after the first of them.

    With `--at`, prints the key's state at that moment, and the change that made it.
    """
    choice = choosing.choice_of(arguments)
    if arguments.at is not None and choice is not None:
        raise ChangelogError(
            Kind.USAGE,
            "--at shows the state at one moment, and takes no filter of changes",
            hint="leave out --at, or --since, --until, --service, --identifier and --column",
        )
    settings = config.load(arguments.config, os.environ)
    if arguments.entity not in OF_CHANGELOG:
        refuse_other_envelope(settings, "`changelog history`")
    log = open_log(settings)
    entity, key = arguments.entity, key_text(arguments.key)
    if arguments.at is not None:
        _print_state(arguments, key, key_state(log, entity, key, at=arguments.at))
        return 0
    everything = key_history(log, entity, key)
    is_gone = everything[-1].envelope.provenance.source.op in _DELETES  # even if the options leave this change out
    changes = list(filter(choice, everything))
    records = _with_gaps(log, changes) if changes else []
    form = _form(arguments)
    if arguments.json:
        for record in records:
            print(json_line(form.message(record)))
        return 0
    console = show.console()
    console.print(_title(entity, key, changes, is_gone=is_gone))
    for line in show.history(records, key=key, render=form.render):
        console.print(line)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How changes are shown: `message` returns the JSON of a change for programs, `render` what people see."""

    message: Callable[[Record], bytes]
    render: show.RenderChange


def _form(arguments: argparse.Namespace) -> _Form:
    if not arguments.patch:
        return _Form(message=as_json.message, render=show.record)
    from changelog.connectors.history.patch_json import patch_message  # noqa: PLC0415 - only --patch needs them
    from changelog.connectors.rendering.show_patch import patch  # noqa: PLC0415

    return _Form(message=patch_message, render=patch)


def _print_state(arguments: argparse.Namespace, key: str, row: KeyState) -> None:
    """Prints the state of a key at a moment, and the change that made it."""
    form = _form(arguments)
    if arguments.json:
        print(json_line(as_json.state(row, form.message(row.change))))
        return
    console = show.console()
    title = Text(f"{arguments.entity} {safe(key)}", style="bold")
    console.print(title.append(f"  as of {moment_text(arguments.at)}\n", style="not bold"))
    for part in state(row.blame, width=console.width):
        console.print(part)
    console.print("\nmade by this change:", style="dim")
    console.print(form.render(row.change, subject=False))


def _with_gaps(log: Log, changes: Sequence[Record]) -> list[Record]:
    """Returns the changes of a key, and all gaps after the first change, in the order of their positions.

    A gap is a record. It says that changes of any key may have been lost at its position.
    """
    if changes[0].entity == GAPS:
        return list(changes)
    begin = position_of(changes[0])
    gaps = [gap for gap in read_gaps(log) if position_of(gap) > begin]
    return sorted([*changes, *gaps], key=position_of)


def _title(entity: str, key: str, changes: Sequence[Record], *, is_gone: bool) -> Text:
    title = Text(f"{entity} {safe(key)}", style="bold")
    title.append(f"  {show.counted(len(changes), 'change')}", style="not bold")
    provenances = [record.envelope.provenance for record in changes]
    services = dict.fromkeys(item.stamp.service_name for item in provenances if item.source.op is not Op.READ)
    if services:
        title.append(safe(f" by {', '.join(services)}"), style="not bold")
    if len(provenances) > 1:
        span = provenances[-1].source.committed_at - provenances[0].source.committed_at
        title.append(f" in {show.duration(span)}", style="not bold")
    if provenances and is_gone:
        title.append("; it is gone now", style="not bold red")
    return title.append("\n")
