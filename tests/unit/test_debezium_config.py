"""Tests the configuration of `[source] kind = "debezium"`: which keys can be combined, and which settings result."""

from pathlib import Path

import pytest

from changelog.connectors import config
from changelog.connectors.config import DebeziumConfig
from changelog.connectors.sources.debezium.decode.settings import TranslationSettings
from changelog.connectors.sources.debezium.inputs.engine.settings import defaults
from changelog.connectors.wiring.debezium import translation_settings
from changelog.envelope.errors import ChangelogError, Kind

HEAD = 'name = "shop"\nsink = { path = "log" }\ntables = { include = ["*"] }\n'
SOURCE = '[source]\nkind = "debezium"\nconnector = "postgresql"\n'
TOPICS = '[source.topics]\nbootstrap_servers = "a:1"\ninclude = ["app.*"]\n'
ITEM = '[entities.item]\ntable = "public.item"\n'


def load(folder: Path, text: str) -> config.Config:
    file = folder / "changelog.toml"
    file.write_text(HEAD + text, "utf-8")
    return config.load(file, {"PASSWORD": "secret"})


def test_properties_may_be_written_with_or_without_quotes(tmp_path: Path) -> None:
    properties = """
    jars = "jars"
    [source.properties]
    "database.hostname" = "db"
    database.password = "env:PASSWORD"
    database.port = 5432
    include.schema.changes = false
    table.include.list = ["public.a", "public.b"]
    """
    source = load(tmp_path, SOURCE + properties).source
    assert isinstance(source, DebeziumConfig)
    assert source.properties == {
        "database.hostname": "db",
        "database.password": "secret",
        "database.port": "5432",
        "include.schema.changes": "false",
        "table.include.list": "public.a,public.b",
    }
    assert source.jars == tmp_path / "jars"
    assert "secret" not in repr(source)


def test_the_settings_for_translating_events_come_from_the_configuration(tmp_path: Path) -> None:
    """The settings include the name of the connector, because rows without Debezium's envelope do not name it."""
    settings = translated(tmp_path, SOURCE.replace("postgresql", "mysql") + TOPICS)
    assert (settings.connector, settings.binary, settings.placeholder) == (
        "mysql",
        "bytes",
        "__debezium_unavailable_value",
    )
    properties = '[source.properties]\nbinary.handling.mode = "hex"\n"unavailable.value.placeholder" = "none"\n'
    settings = translated(tmp_path, SOURCE + properties)
    assert (settings.connector, settings.binary, settings.placeholder) == ("postgresql", "hex", "none")
    settings = translated(tmp_path, f'{SOURCE}binary_handling = "base64"\n{TOPICS}')
    assert settings.binary == "base64"


def translated(folder: Path, text: str) -> TranslationSettings:
    loaded = load(folder, text)
    assert isinstance(loaded.source, DebeziumConfig)
    return translation_settings(loaded, loaded.source)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SOURCE, "source: does not say where events come from; add [source.topics], or [source.properties]"),
        (f"{SOURCE}heap_mib = 99\n{TOPICS}", "source.heap_mib: does not apply to topics; leave this key out"),
        (f"{SOURCE}added_prefix = 'x'\n{TOPICS}", "source.added_prefix: applies only with unwrapped = true"),
        (f"{SOURCE}unwrapped = true\nproperties = {{}}\n", "source.unwrapped: applies only to topics"),
        (f"{SOURCE}{TOPICS}registry_id_bytes = 8\n", "source.topics.registry_id_bytes: applies only with a registry"),
        (f"{SOURCE}{TOPICS}held_mib = 8\n", "source.topics.held_mib: applies only if transactions names"),
        (
            f"{SOURCE}unwrapped = true\n{TOPICS}transactions = 'app.transaction'\n",
            "source.topics.transactions: flat rows do not say where they are in a transaction",
        ),
        (f"{SOURCE}properties = {{ 'binary.handling.mode' = 'octal' }}\n", "source.binary_handling: should be 'bytes'"),
        (f"{SOURCE}{TOPICS}colour = 8\n", "source.topics.colour: is not known; known here: bootstrap_servers"),
        (SOURCE.replace("postgresql", "access") + TOPICS, "source.connector: should be 'cassandra'"),
        (SOURCE + TOPICS.replace('["app.*"]', "[]"), "source.topics.include: should not be empty"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ChangelogError) as caught:
        load(tmp_path, text)
    assert caught.value.kind is Kind.USAGE
    assert problem in caught.value.message


def test_types_are_for_debezium_only(tmp_path: Path) -> None:
    source = '[source]\nkind = "postgres"\ndsn = "dbname=a"\n'
    with pytest.raises(ChangelogError, match=r"entities.item.types: applies only to \[source\] kind = \"debezium\""):
        load(tmp_path, f'{source}{ITEM}types = {{ id = "long" }}\n')
    typed = load(tmp_path, f'{SOURCE}{TOPICS}{ITEM}types = {{ id = "long" }}\n')
    assert typed.entities["item"].types == {"id": "long"}


@pytest.mark.parametrize(("connector", "home"), [("postgresql", "public"), ("sqlserver", "dbo"), ("mysql", "")])
def test_tables_without_a_schema_are_in_the_default_schema(tmp_path: Path, connector: str, home: str) -> None:
    assert load(tmp_path, SOURCE.replace("postgresql", connector) + TOPICS).source.home == home


def test_only_the_configured_tables_are_read() -> None:
    properties = defaults("postgresql", "x.Postgres", "my-shop", [("public", "b"), ("public", "a.b")])
    assert properties["table.include.list"] == r"public\.a\.b,public\.b"
    assert (properties["slot.name"], properties["connector.class"]) == ("my_shop", "x.Postgres")
    assert "table.include.list" not in defaults("mongodb", None, "shop", [("shop", "item")])
