"""Writes the scripts that let a shell complete the words of a `changelog` command line.

A script is generated from the parser of the command line, and works without starting Python.
"""

import argparse
from collections.abc import Iterator
from typing import Final

import shtab

SHELLS: Final = ("bash", "zsh", "fish")

_LIST_ENTITIES: Final = "grep -oE '^\\[entities\\.[a-z0-9_]+' changelog.toml 2>/dev/null | cut -d. -f2 | sort -u"
"""The shell command that prints the entities named in the `changelog.toml` of the current folder."""

_ENTITY: Final[shtab.CompleteType] = {
    "bash": "_changelog_entities",
    "zsh": "_changelog_entities",
    "fish": f"({_LIST_ENTITIES})",
    "preamble": {
        "bash": f'_changelog_entities() {{ compgen -W "$({_LIST_ENTITIES})" -- "$1"; }}',
        "zsh": f'_changelog_entities() {{ compadd -- ${{(f)"$({_LIST_ENTITIES})"}}; }}',
    },
}

_COMPLETERS: Final = {
    "ENTITY": _ENTITY,
    "FILE": shtab.FILE,
    "FILE.sql": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
    "DIR": shtab.DIRECTORY,
}
"""How a shell completes the value of an argument, by the name that this value has in the help, such as `FILE`."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns the script for `shell`, one of `SHELLS`. It completes commands, options, files, folders and entities."""
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in _COMPLETERS:
            action.complete = _COMPLETERS[action.metavar]  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
