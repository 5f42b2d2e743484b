"""Renders changes as JSON Patches."""

from collections.abc import Iterator
from typing import Final

from rich.console import ConsoleRenderable
from rich.text import Text

from changelog.connectors.show import change_with
from changelog.connectors.terminal import json_line
from changelog.envelope.canonical import dumps
from changelog.envelope.delta import delta_of
from changelog.envelope.model import Record

_STYLES: Final = {"add": "green", "remove": "red", "replace": "yellow", "test": "dim"}


def patch(change: Record, *, subject: bool = True) -> ConsoleRenderable:
    """Returns what is printed for one change, like `changelog.connectors.show.record`, but with one line for each
    operation of the change's JSON Patch. Raises ChangelogError (MALFORMED) if a state is not JSON.
    """
    return change_with(change, _operations(change), subject=subject)


def _operations(change: Record) -> Iterator[Text]:
    for operation in delta_of(change.envelope).patch:
        yield Text(json_line(dumps(operation)), style=_STYLES[operation["op"]])
