"""`changelog republish`: publishes keys of an entity again from its table, without disturbing the order of changes."""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from changelog.connectors import config
from changelog.connectors.commands import signalling
from changelog.connectors.terminal import say
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import divide

KEYS_FILE = "keys.jsonl"
"""The name of a file beside a drift report. The file has a line of JSON for each key that drifted."""


Shape = TypeVar("Shape")


class _Line(msgspec.Struct):
    entity: str
    key: str


class _Report(msgspec.Struct):
    kind: str
    keys: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog republish`."""
    parser.add_argument("entity", metavar="ENTITY", help="the entity")
    selection = parser.add_mutually_exclusive_group(required=True)
    selection.add_argument("--keys", nargs="+", metavar="KEY", help="these keys, as the changelog writes them")
    selection.add_argument(
        "--report", type=Path, metavar="FILE", help="the keys of a drift report: its report.json or keys.jsonl"
    )
    selection.add_argument("--all", action="store_true", help="all keys of the table")
    signalling.add_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Asks the service to republish the keys, and waits until this is done.

    If the table lacks a named key and the changelog has it, the service publishes a delete. If there are too many keys
    for one signal, asks for a rebuild of the whole table instead.
    """
    settings = config.load(arguments.config, os.environ)
    entity: str = arguments.entity
    if arguments.all:
        return signalling.ask(settings, arguments, "republish", entity)
    keys = arguments.keys or list(report_keys(arguments.report, entity))
    if not keys:
        say(
            f"the report {arguments.report} has no key of the entity {entity}, so there is nothing to do",
            file=sys.stderr,
        )
        return 0
    parts = list(divide(keys))
    if len(parts) == 1:
        return signalling.ask(settings, arguments, "republish", entity, parts[0])
    count = sum(map(len, parts))
    say(f"{count:,} keys are too many to look up singly: the whole table is read, as for a rebuild", file=sys.stderr)
    return signalling.ask(settings, arguments, "rebuild", entity)


def report_keys(file: Path, entity: str) -> Iterator[str]:
    """Yields the keys of the entity in a drift report; `file` is the report.json or the keys.jsonl of the report.

    Raises ChangelogError (USAGE) if the file is neither of them.
    """
    if file.suffix == ".json":
        report = _decoded(file, file.read_bytes(), _Report)
        if report.kind != "changelog-drift-report" or report.keys is None:
            raise ChangelogError(
                Kind.USAGE,
                f"the file {file} is not a drift report that lists keys",
                hint=f"name the report.json or the {KEYS_FILE} of a run of `detect_drift` that compared rows",
            )
        file = file.parent / report.keys
    with file.open("rb") as lines:
        for line_number, line in enumerate(lines, start=1):
            entry = _decoded(f"{file}, line {line_number}", line, _Line)
            if entry.entity == entity:
                yield entry.key


def _decoded(where: object, text: bytes, shape: type[Shape]) -> Shape:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = f"name the report.json or the {KEYS_FILE} that `detect_drift` wrote"
        raise ChangelogError(Kind.USAGE, f"{where} does not belong to a drift report", hint=hint) from error
