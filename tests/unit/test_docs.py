"""Tests the examples on all pages of docs/.

Commands can be parsed. Python, TOML, JSON and YAML are well formed. Imported names exist.
"""

import ast
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from changelog.connectors import cli, config
from changelog.connectors.commands import Command
from changelog.connectors.service.metrics import Metrics
from changelog.connectors.views.http.metrics import ViewMetrics

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
PAGES = sorted([CHECKOUT / "README.md", *DOCS.rglob("*.md")])
POSITION = "00000001/0000000000000001/00000002"
PREFIX = re.compile(r"arguments are required|expected (one|at least one) argument|one of the arguments")
"""Matches the error for a command without its required arguments. Texts often name a command without them."""

DRIFT = "changelog_drift_"  # the prefix of a Spark job's metrics, whose names tests/unit/drift checks
METRIC = re.compile(r"changelog_(?:[a-z]+_)+(?:total|bytes|seconds|open|info|offsets|left|pages|pages_read)\b")


def blocks(language: str) -> list[Any]:
    """Returns all blocks in this language as parameters of a test. Their ids name the page and the line."""
    fence = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [
        pytest.param(
            match[1], id=f"{page.relative_to(CHECKOUT)}:{page.read_text('utf-8')[: match.start()].count(chr(10)) + 1}"
        )
        for page in PAGES
        for match in fence.finditer(page.read_text("utf-8"))
    ]


def shown() -> Iterator[str]:
    """Yields all command lines of `changelog` in the shell blocks of the pages."""
    for page in PAGES:
        blocks_of_page = re.findall(r"^```sh\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        for line in re.findall(r"(?:^|bin/| )changelog ([a-z].*)", "".join(blocks_of_page), re.MULTILINE):
            yield re.split(r"[>#|]", line)[0].strip()


def named() -> Iterator[str]:
    """Yields all commands that are named in the text of the pages, for example `changelog run`."""
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for command in re.findall(r"`changelog ([a-z][^`]*)`", prose):
            if not re.search(r"[…\[|]|COMMAND", command):
                yield " ".join(command.split())


SHOWN = sorted({command for command in shown() if command.split()[0] in cli.COMMANDS})


def parse(command: str) -> None:
    words = [POSITION if word == "POSITION" else word for word in shlex.split(command)]
    module: Command = importlib.import_module(f"changelog.connectors.commands.{words[0]}")
    assert cli.parser_of({words[0]: module}).parse_args(words).command == words[0]


@pytest.mark.parametrize("command", SHOWN)
def test_commands_that_are_shown_parse(command: str) -> None:
    parse(command)


@pytest.mark.parametrize("command", sorted(set(named())))
def test_named_commands_parse_or_only_lack_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        parse(command)
    except SystemExit:
        assert PREFIX.search(capsys.readouterr().err)


def test_every_command_is_shown() -> None:
    assert {command.split()[0] for command in SHOWN} >= cli.COMMANDS.keys() - {"demo"}


@pytest.mark.parametrize("script", blocks("sh"))
def test_shell_parses(script: str) -> None:
    process = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("text", blocks("toml"))
def test_configuration_in_the_docs_is_valid(text: str) -> None:
    """A block may be a part of a configuration, so only unknown keys and invalid values are errors."""
    resolved = re.sub(r'"(env|file):[^"]*"', '"postgresql://user@host/database"', text)
    for part in re.split(r"(?:\A|\n\n)# .+\n", resolved):
        tree: dict[str, Any] = tomllib.loads(part)
        complete: dict[str, Any] = {"name": "booking", "source": {"kind": "postgres", "dsn": "host=db"}, **tree}
        sink = complete.get("sink", {"path": "log"})
        if "client" in sink:
            sink = {"kind": "kafka", **sink}
        complete["sink"] = {"bootstrap_servers": "kafka:9092", **sink} if sink.get("kind") == "kafka" else sink
        config.Config.model_validate(complete)


@pytest.mark.parametrize("text", blocks("json"))
def test_json_is_json(text: str) -> None:
    assert json.loads(re.sub(r"\{…\}|…", lambda left_out: "{}" if left_out[0] == "{…}" else '"…": 0', text))


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_is_yaml(text: str) -> None:
    assert YAML(typ="safe").load(text)


@pytest.mark.parametrize("source", blocks("python"))
def test_python_compiles_and_imports_existing_names(source: str) -> None:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "changelog":
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names)


@pytest.mark.parametrize("file", ["reference/metrics.md", "alerts.yml"])
def test_metrics_exist(file: str) -> None:
    texts = Metrics().text().decode() + ViewMetrics().text().decode()
    known = set(re.findall(r"^# TYPE (\w+)", texts, re.MULTILINE))
    named = {
        name
        for name in METRIC.findall((DOCS / file).read_text("utf-8"))
        if not name.startswith((DRIFT, "changelog_job_"))
    }
    assert named <= known
    ours = {name for name in known if name.startswith("changelog_") and not name.endswith("_created")}
    assert file == "alerts.yml" or named == ours


def test_the_python_reference_names_existing_objects() -> None:
    page = (DOCS / "reference" / "python-api.md").read_text("utf-8")
    named = re.findall(r"^\.\. auto\w+:: (\S+)\.(\w+)$", page, re.MULTILINE)
    assert named
    for module, name in named:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_named_tests_exist() -> None:
    """Pages about concepts name the tests that prove the pages' claims. They also name classes that break a rule on
    purpose: tests use such a class to show that they notice when the rule is broken.
    """
    prose = "".join(page.read_text("utf-8") for page in PAGES)
    named = set(re.findall(r"`((?:test_|_[A-Z])\w+)`", prose))
    source = "".join(file.read_text("utf-8") for file in (CHECKOUT / "tests").rglob("*.py"))
    assert {"test_the_simulation_detects_windows_that_break_a_rule", "_KeepsEverything"} <= named
    postgres = {"test_decoding"}  # a plugin of the server
    assert named - postgres - set(re.findall(r"^ *(?:def|class) (\w+)", source, re.MULTILINE)) == set()
