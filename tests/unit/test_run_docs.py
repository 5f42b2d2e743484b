"""docs/how-to/run.md and docs/alerts.yml: the commands they name parse, the metrics they name exist."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from connectors import cli
from connectors.commands import Command
from connectors.service.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs"
POSITION = "00000001/0000000000000001/00000002"

RUNNING = (DOCS / "how-to" / "run.md").read_text("utf-8")
BLOCKS = "".join(re.findall(r"```sh\n(.*?)```", RUNNING, re.DOTALL))
SHOWN = re.findall(r"(?:^|bin/| )changelog ([a-z].*)", BLOCKS, re.MULTILINE)
MENTIONED = re.findall(r"`changelog ([^`]+)`", RUNNING)
COMMANDS = sorted({re.split(r"[>#|]", found)[0].strip() for found in (*SHOWN, *MENTIONED)})
DRIFT = "changelog_drift_"  # those are of a job: see tests/unit/drift
METRIC = re.compile(r"changelog_(?:[a-z]+_)+(?:total|bytes|seconds|open|info)")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.split()[0] in cli.COMMANDS])
def test_commands_parse(command: str) -> None:
    words = [POSITION if word == "POSITION" else word for word in shlex.split(command)]
    module: Command = importlib.import_module(f"connectors.commands.{words[0]}")
    assert cli._parser(words[0], module).parse_args(words).command == words[0]


def test_every_command_is_shown() -> None:
    assert {command.split()[0] for command in COMMANDS} >= cli.COMMANDS.keys() - {"demo"}


@pytest.mark.parametrize("file", ["how-to/run.md", "alerts.yml"])
def test_metrics_exist(file: str) -> None:
    known = set(re.findall(r"^# TYPE (\w+)", Metrics().text().decode(), re.MULTILINE))
    named = set(METRIC.findall((DOCS / file).read_text("utf-8")))
    named = {name for name in named if not name.startswith(DRIFT)}
    assert named
    assert named <= known
