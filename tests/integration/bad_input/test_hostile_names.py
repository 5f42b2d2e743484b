"""Tests that names and values that contain attacks do no harm when a command prints them.

The names of the database, its tables, columns and roles, and the keys and values of rows all contain attacks. If a
command printed such a text without escapes, the text could act as SQL, as TOML or as a command to the terminal.
"""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from changelog.connectors import cli
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.terminal import safe
from tests.integration.site import Site
from tests.servers import drop_slots

CONTROLS = "\x1b]0;owned\x07\x9b31m\u202e\x7f\r"
"""The command that sets a terminal's title (ESC, OSC), a C1 control, a character that changes the reading direction,
DEL, and a carriage return.
"""

BREAKOUT = "x\nALTER ROLE {role} SUPERUSER;--"
"""The beginning of the database's name. The part after the line break is an SQL statement."""

FORGED_SECTIONS = 'keyless\n[signals]\nsecret = "known"\n[tables]\ninclude = ["*"]\n#'
"""The name of a table. If `init` wrote it without escapes, it would add sections to the configuration."""


@pytest.fixture
def hostile(server: PostgresServer, tmp_path: Path, own_name: str) -> Iterator[Site]:
    """A database in which every name is an attack. Each test has roles of its own."""
    role = f"mallory_{own_name[-4:]}"
    database = BREAKOUT.format(role=role) + CONTROLS
    owner = f"{role}{CONTROLS}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {}").format(sql.Identifier(role)))
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER").format(sql.Identifier(owner)))
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    dsn = make_conninfo(server.dsn(), dbname=database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        table, column = sql.Identifier(f"guest{CONTROLS}\nx"), sql.Identifier(f"na\nme{CONTROLS}")
        connection.execute(sql.SQL("CREATE TABLE {} (id text PRIMARY KEY, {} text)").format(table, column))
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(table, sql.Identifier(owner)))
        connection.execute(sql.SQL("CREATE TABLE {} (a int)").format(sql.Identifier(FORGED_SECTIONS)))
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s, %s)").format(table), [f"k\n{CONTROLS}", CONTROLS])
    site = Site(dsn, tmp_path)
    site.name = role
    yield site
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        drop_slots(admin, database)
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))
        for name in ("changelog_setup", "changelog_run", role, owner):
            admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(name)))


def output_of(site: Site, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Returns the output of a command on both streams. Checks that the output has no terminal controls."""
    capsys.readouterr()
    cli.main([words[0], "--config", str(site.config), *words[1:]])
    output = "".join(capsys.readouterr())
    assert [char for char in output if char != "\n" and safe(char) != char] == [], words
    return output


def test_the_printed_grants_make_nobody_a_superuser(hostile: Site, capsys: pytest.CaptureFixture[str]) -> None:
    script = output_of(hostile, capsys, "init", "--dsn", hostile.dsn, "--grants")
    assert not [line for line in script.splitlines() if line.startswith("ALTER ROLE")]
    hostile.sql(script)
    assert hostile.sql(f"SELECT rolsuper FROM pg_roles WHERE rolname = '{hostile.name}'") == [(False,)]
    may_select = "SELECT has_table_privilege('changelog_run', oid, 'SELECT') FROM pg_class WHERE relname LIKE 'guest%'"
    assert hostile.sql(f"{may_select} AND relkind = 'r'") == [(True,)]


def test_the_printed_script_creates_triggers_on_the_tables(hostile: Site, capsys: pytest.CaptureFixture[str]) -> None:
    hostile.sql(output_of(hostile, capsys, "init", "--dsn", hostile.dsn, "--stamps"))
    tables = "SELECT relname FROM pg_trigger JOIN pg_class AS c ON c.oid = tgrelid WHERE tgname = 'changelog_stamp'"
    assert {name for (name,) in hostile.sql(tables)} == {f"guest{CONTROLS}\nx", FORGED_SECTIONS}


def test_the_written_configuration_has_only_the_sections_of_init(
    hostile: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    output_of(hostile, capsys, "init", "--dsn", hostile.dsn)
    text = hostile.config.read_text("utf-8")
    assert [char for char in text if char != "\n" and safe(char) != char] == []
    configuration = tomllib.loads(text)
    assert configuration.keys() == {"name", "source", "sink", "provenance", "service", "entities"}
    [entity] = configuration["entities"].values()
    assert "\x1b" in entity["table"]


def test_no_command_prints_terminal_controls(
    hostile: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(hostile.folder)  # `schemas generate` writes into the working folder
    assert cli.main(["init", "--config", str(hostile.config), "--dsn", hostile.dsn, "--name", hostile.name]) == 0
    entities = tomllib.loads(hostile.config.read_text("utf-8"))["entities"]
    [name] = entities
    hostile.configure(f"[entities.{name}]\ntable = {json.dumps(entities[name]['table'])}\n")
    with hostile.running() as running:
        running.until(hostile.is_read)
    output_of(hostile, capsys, "check")
    output_of(hostile, capsys, "check", "--fix")
    output_of(hostile, capsys, "status")
    output_of(hostile, capsys, "tail", "--no-follow")
    output_of(hostile, capsys, "drop")
    output_of(hostile, capsys, "schemas", "generate")
    output_of(hostile, capsys, "republish", name, "--keys", CONTROLS, "--no-wait")
    assert "owned" in output_of(hostile, capsys, "history", name, f"k\n{CONTROLS}")
    [line] = output_of(hostile, capsys, "tail", "--json", "--no-follow").splitlines()
    assert json.loads(line)["key"] == f"k\n{CONTROLS}"
    [line] = output_of(hostile, capsys, "history", name, f"k\n{CONTROLS}", "--json").splitlines()
    assert CONTROLS in json.loads(line)["value"]["current"].values()


def test_grants_are_printed_only_for_configured_tables(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(database, tmp_path)
    site.sql("CREATE TABLE guest (id int PRIMARY KEY)", "CREATE TABLE salary (id int PRIMARY KEY)")
    site.configure("[entities.guest]\ntable = 'public.guest'")
    assert "salary" not in output_of(site, capsys, "init", "--dsn", database, "--grants")
    assert "salary" in output_of(site, capsys, "init", "--dsn", database, "--grants", "--tables", "public.*")
