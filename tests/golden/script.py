"""Parses golden files, and puts new expected messages into their text."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 118
CONFIG, COMMAND, EXPECTED = "--# ", "--> ", "-> "


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A statement of a golden file, or a command to the test, such as `--> restart`.

    `text` is exactly its text in the file. `sql` is None for a command, and `command` is empty for a statement.
    `expected` has the messages that follow in the file, each as JSON text.
    """

    text: str
    sql: str | None
    command: tuple[str, ...]
    expected: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A golden file. `tail` is the text after its last step."""

    config: dict[str, Any]
    steps: tuple[Step, ...]
    tail: str


def parse(text: str) -> Script:
    """Parses the text of a golden file."""
    lines = text.removesuffix("\n").split("\n")  # `splitlines` would also split at U+2028 and others
    config = tomllib.loads("\n".join(line.removeprefix(CONFIG) for line in lines if line.startswith(CONFIG)))
    steps: list[Step] = []
    step_lines: list[str] = []
    expected: list[list[str]] = []
    for line in [*lines, ""]:
        if line.startswith(EXPECTED):
            expected.append([line.removeprefix(EXPECTED)])
            continue
        if expected and line.startswith(" "):
            expected[-1].append(line.strip())
            continue
        if expected:
            steps[-1] = _with(steps[-1], ["".join(_spaced(part)) for part in expected])
            expected = []
        step_lines.append(line)
        if line.startswith(COMMAND) or _ends(step_lines):
            steps.append(_step(step_lines))
            step_lines = []
    return Script(config=config, steps=tuple(steps), tail="\n".join(step_lines))


def render(script: Script, messages: Sequence[Sequence[str]]) -> str:
    """Returns the text of the file with new expected messages. `messages` has one list of messages for each step."""
    parts = []
    for step, step_messages in zip(script.steps, messages, strict=True):
        parts += [step.text, *(EXPECTED + message for message in step_messages)]
    return "\n".join([*parts, script.tail]).rstrip("\n") + "\n"


def message_text(members: Sequence[tuple[str, str]]) -> str:
    """Returns a JSON object as text. The values are JSON text already. A long object is broken between members."""
    lines = [""]
    for name, value in members:
        member = f"{json.dumps(name)}: {value}"
        if lines[-1] and len(lines[-1]) + len(member) > WIDTH - len(EXPECTED):
            lines.append(member)
        else:
            lines[-1] += (", " if lines[-1] else "") + member
    return "{" + ",\n    ".join(lines) + "}"


def plain(message: str) -> str:
    """Returns a message without its line breaks."""
    return message.replace(",\n    ", ", ")


def _step(lines: Sequence[str]) -> Step:
    text = "\n".join(lines)
    if lines[-1].startswith(COMMAND):
        return Step(text=text, sql=None, command=tuple(lines[-1].removeprefix(COMMAND).split()), expected=())
    return Step(text=text, sql=text, command=(), expected=())


def _with(step: Step, expected: Sequence[str]) -> Step:
    return Step(text=step.text, sql=step.sql, command=step.command, expected=tuple(expected))


def _ends(lines: Sequence[str]) -> bool:
    return lines[-1].endswith(";") and not lines[-1].startswith("--") and "\n".join(lines).count("$$") % 2 == 0


def _spaced(parts: Sequence[str]) -> Sequence[str]:
    return [part if at == len(parts) - 1 else part + " " for at, part in enumerate(parts)]
