"""Tests that docs/reference/kafka.md has the same settings of topics as the code, and commands that can be parsed."""

import importlib
import re
import shlex
from pathlib import Path

import pytest

from changelog.connectors import cli
from changelog.connectors.commands import Command
from changelog.connectors.sinks.kafka.admin.topics import TopicSettings

TEXT = (Path(__file__).parents[3] / "docs" / "reference" / "kafka.md").read_text("utf-8")
POSITION = "00000001/0000000000000001/00000002"
UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "MiB": 1 << 20}
AGGRESSIVE = TEXT.partition('### `profile = "aggressive"`')[2].partition("###")[0]
COMMANDS = sorted(set(re.findall(r"^changelog ([^#\n]+?) *(?:#|$)|`changelog ([^`]+)`", TEXT, re.MULTILINE)))


def in_kafka_units(text: str) -> str:
    number, _, unit = text.strip("`").partition(" ")
    return str(int(number) * UNITS[unit]) if unit else number


def test_the_page_has_the_settings_of_the_changelog_profile() -> None:
    rows = re.findall(r"^\| `([a-z.]+)` \| (.+?) \|", TEXT, re.MULTILINE)
    assert {name: in_kafka_units(value) for name, value in rows} == TopicSettings().to_kafka()


def test_the_aggressive_profile_differs_as_documented() -> None:
    rows = re.findall(r"`([a-z.]+)`\s+([\d.]+(?: (?:d|h|min|MiB))?)", AGGRESSIVE)
    usual, aggressive = TopicSettings().to_kafka(), TopicSettings(profile="aggressive").to_kafka()
    documented = {name: in_kafka_units(value) for name, value in rows}
    assert documented == {name: value for name, value in aggressive.items() if value != usual[name]}


@pytest.mark.parametrize("command", ["".join(groups) for groups in COMMANDS])
def test_commands_parse(command: str) -> None:
    words = [POSITION if word == "POSITION" else word for word in shlex.split(command)]
    module: Command = importlib.import_module(f"changelog.connectors.commands.{words[0]}")
    shown = {"history": ["order", "42"], "schemas": ["register"], "repartition": ["order", "--partitions", "12"]}
    complete = words if len(words) > 1 else [*words, *shown.get(words[0], [])]
    assert cli.parser_of({words[0]: module}).parse_args(complete).command == words[0]
