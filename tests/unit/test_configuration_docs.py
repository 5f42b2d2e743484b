"""Tests that docs/reference/configuration.md has every key of the configuration with its default, and no other keys."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from changelog.connectors import config

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "configuration.md").read_text("utf-8")

FOLLOWS = {
    "slot",
    "publication",
    "server_id",
    "prefix",
    "key",
    "partition_by",
    "table",
    "replication_factor",
    "provenance",
    "schemas",
    "streams",
    "application",
}
"""Keys whose default depends on other settings. The page describes these defaults in words."""


def section(heading: str) -> dict[str, str]:
    """Reads the tables of a section of the page. Returns the text of each key's default, by the key."""
    text = PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    return dict(re.findall(r"^\| `([\w.A-Z]+)` \| (.*?) \|", text, re.MULTILINE))


SECTIONS: dict[str, list[tuple[str, type[BaseModel]]]] = {
    "`[source]`": [
        ("", config.PostgresConfig),
        ("", config.MysqlConfig),
        ("", config.DebeziumConfig),
        ("", config.TopicsConfig),
    ],
    "`[sink]`": [("", config.FilesConfig), ("", config.KafkaConfig)],
    "`[tables]`": [("", config.TablesConfig)],
    "`[entities.X]`": [("", config.EntityConfig)],
    "`[provenance]`": [("", config.ProvenanceConfig)],
    "`[schemas]`": [("", config.SchemasConfig)],
    "`[mask]`, `[signals]`, `[service]`": [
        ("mask.", config.MaskConfig),
        ("signals.", config.SignalsConfig),
        ("service.", config.ServiceConfig),
    ],
    "`[state]`": [("", config.StateConfig)],
    "`[drift]`": [("", config.DriftConfig)],
    "`[serve]`": [("", config.ServeConfig), ("", config.StreamsConfig)],
    "`[console]`": [("", config.ConsoleConfig)],
}


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_key_is_on_the_page(heading: str) -> None:
    keys = {prefix + name for prefix, model in SECTIONS[heading] for name in model.model_fields}
    assert section(heading).keys() == keys


def test_every_section_is_on_the_page() -> None:
    named = {name for name in re.findall(r"^### (.+)$", PAGE, re.MULTILINE) for name in re.findall(r"\[(\w+)", name)}
    assert named | {"name"} == config.Config.model_fields.keys()


@pytest.mark.parametrize("heading", SECTIONS)
def test_defaults_are_those_of_the_page(heading: str) -> None:
    text = PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    for prefix, model in SECTIONS[heading]:
        for name, field in model.model_fields.items():
            cells = re.findall(rf"^\| `{re.escape(prefix + name)}` \| (.*?) \|", text, re.MULTILINE)
            assert cells, name
            if field.default is PydanticUndefined:
                assert "required" in cells or name == "kind" or {"none"} & set(cells), name
            elif name not in FOLLOWS and name not in ("kind", "drift", "default"):
                assert any(same(cell, field.default) for cell in cells), (name, cells, field.default)


def same(cell: str, default: Any) -> bool:
    """Returns whether a cell of the page gives this default. The cell has TOML, or `none` for None."""
    if default is None:
        return cell == "none"
    quoted = re.fullmatch(r"`(.+)`", cell)
    if quoted is None:
        return False
    value = tomllib.loads(f"value = {quoted[1]}")["value"]
    return bool(
        (tuple(value) if isinstance(value, list) else value) == (str(default) if isinstance(value, str) else default)
    )
