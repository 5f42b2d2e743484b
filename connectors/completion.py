"""Scripts by which a shell completes `changelog`: made of its parser, they run without Python."""

import argparse
from collections.abc import Iterator
from typing import Final

import shtab

SHELLS: Final = ("bash", "zsh", "fish")

_NAMES: Final = "grep -oE '^\\[entities\\.[a-z0-9_]+' changelog.toml 2>/dev/null | cut -d. -f2 | sort -u"
"""Prints the entities of the configuration in this folder."""

_ENTITY: Final[shtab.CompleteType] = {
    "bash": "_changelog_entities",
    "zsh": "_changelog_entities",
    "fish": f"({_NAMES})",
    "preamble": {
        "bash": f'_changelog_entities() {{ compgen -W "$({_NAMES})" -- "$1"; }}',
        "zsh": f'_changelog_entities() {{ compadd -- ${{(f)"$({_NAMES})"}}; }}',
    },
}

_COMPLETED: Final = {
    "ENTITY": _ENTITY,
    "FILE": shtab.FILE,
    "FILE.sql": shtab.FILE,
    "FOLDER": shtab.DIRECTORY,
    "DIR": shtab.DIRECTORY,
}
"""How the values of arguments are completed, by what the help calls them."""


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for one of `SHELLS`: it completes commands, options, files, and entities where they are asked for."""
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in _COMPLETED:
            action.complete = _COMPLETED[action.metavar]  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell=shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
