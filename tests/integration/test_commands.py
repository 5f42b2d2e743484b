"""Tests the commands init, check, status and drop, and which entities a configuration makes of a database's tables."""

import json
import os
import tomllib
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from changelog.connectors import cli, config
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sinks.files.sink import FileSink
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.wiring import entities
from changelog.envelope.errors import ChangelogError, Kind
from tests.servers import SETTINGS
from tests.unit.records import checkpoint

TABLES = """
CREATE TABLE guest (id int PRIMARY KEY, name text NOT NULL, email text);
CREATE TABLE orders (id int PRIMARY KEY, guest_id int NOT NULL, status text, note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE keyless (a int);
CREATE TABLE "Odd ""Näme" (id int NOT NULL UNIQUE, "Ünit" text);
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id int PRIMARY KEY);
CREATE TABLE event (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE event_2026 PARTITION OF event FOR VALUES FROM ('2026-01-01') TO ('2027-01-01');
"""


@pytest.fixture
def tables(database: str) -> str:
    """The connection string of a database that has the tables in `TABLES`."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    return database


@pytest.fixture
def config_file(tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration that `changelog init` writes for these tables."""
    monkeypatch.setenv("DATABASE_URL", tables)
    path = tmp_path / "changelog.toml"
    assert cli.main(["init", "--config", str(path), "--name", "booking"]) == 0
    return path


def run(path: Path, *words: str) -> int:
    return cli.main([words[0], "--config", str(path), *words[1:]])


def findings(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """Returns the messages of `check --json`, by status."""
    capsys.readouterr()
    run(path, "check", "--json")
    messages: dict[str, list[str]] = {"ok": [], "warn": [], "fail": []}
    for finding in json.loads(capsys.readouterr().out):
        messages[finding["status"]].append(f"{finding['name']}: {finding['message']}")
    return messages


def write(path: Path, dsn: str, rest: str) -> Path:
    source = f"source = {{ kind = 'postgres', dsn = {json.dumps(dsn)} }}"
    path.write_text(f"name = 'booking'\n{source}\nsink = {{ path = 'log' }}\n{rest}")
    return path


def resolve(path: Path, dsn: str, rest: str) -> list[str]:
    """Checks that the configuration is refused. Returns the lines of the error: the number of problems, and one line
    for each problem.
    """
    with connect(dsn) as connection, pytest.raises(ChangelogError) as raised:
        entities.resolve(config.load(write(path, dsn, rest), {}), read_tables(connection))
    assert raised.value.kind is Kind.USAGE
    return [line.strip() for line in str(raised.value).splitlines()]


def test_init_writes_the_tables_that_can_be_published(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tomllib.loads(config_file.read_text())
    assert tree["source"]["dsn"] == "env:DATABASE_URL"
    assert {name: (entity["table"], entity["key"]) for name, entity in tree["entities"].items()} == {
        "event": ("public.event", ["id", "day"]),
        "guest": ("public.guest", ["id"]),
        "odd_name": ('public."Odd ""Näme"', ["id"]),
        "orders": ("public.orders", ["id"]),
        "sales-orders": ("sales.orders", ["id"]),
    }
    assert '# table = "public.keyless"' in config_file.read_text()
    assert run(config_file, "init", "--force") == 0
    out = capsys.readouterr().out
    assert "5 of 6 tables" in out
    assert "none: left out" in out


def test_init_writes_schemas_next_to_the_configuration_and_keeps_descriptions_that_people_wrote(
    config_file: Path, tables: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = config_file.parent / "schemas"
    assert sorted(file.stem for file in folder.iterdir()) == ["event", "guest", "odd_name", "orders", "sales-orders"]
    guest = folder / "guest.avsc"
    guest.write_text(guest.read_text("utf-8").replace("The columns of entity guest.", "Who sleeps here."), "utf-8")
    monkeypatch.delenv("DATABASE_URL")
    capsys.readouterr()
    assert run(config_file, "init", "--force", "--dsn", tables, "--name", "booking") == 0
    assert f"{folder}:5unchanged" in "".join(
        capsys.readouterr().out.split()
    )  # the blanks are removed, because the output wraps a long path
    assert "Who sleeps here." in guest.read_text("utf-8")


def test_init_writes_no_schemas_if_no_table_has_a_usable_key(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE keyless (a int)")
    assert run(tmp_path / "changelog.toml", "init", "--dsn", database) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["changelog.toml"]


def test_check_names_the_tables_that_are_not_published(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert "tables: not published: public.keyless" in findings(config_file, capsys)["ok"]


def test_init_writes_nothing_if_no_table_matches(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "changelog.toml"
    for words in ((), ("--grants",)):
        assert run(path, "init", "--dsn", database, "--tables", "nosuch.*", "other.t", *words) == 2
        assert "matches nosuch.* other.t" in capsys.readouterr().err
    assert not path.exists()


def test_init_overwrites_a_file_only_with_force(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "init") == 2
    assert "already exists; --force overwrites it" in capsys.readouterr().err
    assert run(config_file, "init", "--force", "--tables", "sales.*") == 0
    assert list(tomllib.loads(config_file.read_text())["entities"]) == ["sales-orders"]


def test_init_writes_a_kafka_sink_on_request(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config_file, "init", "--force", "--sink", "kafka", "--bootstrap-servers", "one:9092,two:9092") == 0
    sink = config.load(config_file, os.environ).sink
    assert sink.kind == "kafka"
    assert sink.bootstrap_servers == "one:9092,two:9092"
    for words in (["--sink", "kafka"], ["--bootstrap-servers", "one:9092"]):
        assert run(config_file, "init", "--force", *words) == 2
        assert "--sink kafka and --bootstrap-servers go together" in capsys.readouterr().err


def test_every_included_table_becomes_an_entity(tables: str, tmp_path: Path) -> None:
    rest = """
    [tables]
    include = ["*"]
    exclude = ["*.keyless"]
    [entities.unit]
    table = 'public."Odd ""Näme"'
    key = ["id"]
    [entities.orders]
    partition_by = ["guest_id"]
    partitions = 4
    exclude_columns = ["note"]
    [entities.event]
    immutable = true
    provenance = { missing = "warn", default = { serviceName = "tracker" } }
    """
    path = write(tmp_path / "c.toml", tables, rest)
    with connect(tables) as connection:
        by_name = {e.name: e for e in entities.resolve(config.load(path, {}), read_tables(connection))}
    assert list(by_name) == ["event", "guest", "orders", "sales-orders", "unit"]
    assert by_name["orders"].partition_by == ("guest_id",)
    assert by_name["orders"].partitions == 4
    assert by_name["event"].key == ("id", "day")
    assert by_name["event"].missing_stamp == "warn"
    assert by_name["event"].default_stamp.service_name == "tracker"
    assert by_name["sales-orders"].table == ("sales", "orders")
    assert by_name["unit"].table == ("public", 'Odd "Näme')


def test_all_problems_of_a_configuration_are_reported_together(tables: str, tmp_path: Path) -> None:
    problems = resolve(
        tmp_path / "c.toml",
        tables,
        """
        mask = { key = "sixteen characters" }
        [tables]
        include = ["public.keyless", "sales.*"]
        [entities.a]
        table = "public.Guest"
        [entities.b]
        table = "public.orders"
        partition_by = ["status"]
        exclude_columns = ["id"]
        [entities.c]
        table = "public.orders"
        [entities.d]
        table = "a.b.c"
        [entities.e]
        table = "public.guest"
        key = ["email"]
        mask = { email = "sha256", nmae = "drop" }
        [entities.nobody]
        partitions = 2
        """,
    )
    assert problems[:1] == ["configuration: 8 problems"]
    assert sorted(problems[1:]) == [
        "entities.a.table: the database has no table public.Guest; did you mean public.guest?",
        "entities.b.columns: key column id must be published",
        "entities.b.partition_by: column status of the table public.orders may be null; make it NOT NULL",
        "entities.c.table: public.orders is already the table of the entity b",
        "entities.d.table: a.b.c is not a table; write SCHEMA.TABLE, with quotes around a name that holds a dot",
        "entities.e.mask: the table public.guest has no column nmae; it has id, name, email",
        'entities.keyless: the table public.keyless has no primary key; add key = ["COLUMN"], or exclude the table',
        'entities.nobody: no table has this name; add table = "SCHEMA.TABLE"',
    ]


def test_check_no_longer_reports_a_problem_that_it_has_fixed(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = findings(config_file, capsys)
    assert before["fail"] == ['odd_name: the replica identity of public.Odd "Näme lacks id']
    assert any(
        text.startswith("guest: the log has only the key of old rows of public.guest") for text in before["warn"]
    )
    assert not any(text.startswith("orders: ") for text in before["warn"])
    assert run(config_file, "check", "--fix") == 0
    out = capsys.readouterr().out
    assert 'ALTER TABLE "public"."guest" REPLICA IDENTITY FULL;' in out
    assert 'ALTER TABLE "public"."event_2026" REPLICA IDENTITY FULL;' in out
    after = findings(config_file, capsys)
    assert not any("old rows" in text for text in after["warn"])
    assert "publication: publication booking has every configured table" in after["ok"]


def test_check_finds_problems_that_would_stop_the_service(
    tables: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION booking FOR TABLE guest (id) WITH (publish = 'insert')")
        connection.execute("SELECT pg_create_logical_replication_slot('booking', 'test_decoding')")
        connection.execute("CREATE UNLOGGED TABLE fleeting (id int PRIMARY KEY)")
        connection.execute("ALTER TABLE guest ENABLE ROW LEVEL SECURITY")
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON guest, fleeting TO reader")
    try:
        dsn = make_conninfo(tables, user="reader")
        rest = """
        [entities.guest]
        table = "guest"
        where = "name <> 'x'"
        partition_by = ["name"]
        [entities.fleeting]
        table = "fleeting"
        [entities.orders]
        table = "orders"
        """
        path = write(tmp_path / "c.toml", dsn, rest)
        messages = findings(path, capsys)
        assert run(path, "check") == 1
        assert "would stop the service" in capsys.readouterr().out
    finally:
        with psycopg.connect(tables, autocommit=True) as connection:
            connection.execute("DROP OWNED BY reader; DROP ROLE reader")
    expected = [
        "replication: role reader may not replicate",
        "slot: slot booking is not ours (test_decoding, of database ",
        "publication: publication booking publishes partitions under their own names",
        "publication: publication booking leaves out some kinds of change",
        "publication: publication booking has a column list on table public.guest",
        "publication: publication booking lacks table public.orders",
        "guest: row security hides rows of table public.guest from role reader",
        "guest: the replica identity of public.guest lacks name",
        "guest: the setting `where` uses name, outside the replica identity of public.guest",
        "fleeting: table public.fleeting is unlogged, so the log has none of its changes",
        "orders: role reader may not read table public.orders",
    ]
    for text in expected:
        assert any(message.startswith(text) for message in messages["fail"]), (text, messages["fail"])


def test_check_compares_the_slot_with_the_changelog(
    config_file: Path, tables: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = FileSink(config_file.parent / "data/changelog")
    sink.recover()
    sink.commit(checkpoint(1))
    sink.close()
    finding = "slot: slot booking no longer exists, although the changelog was begun with it"
    assert finding in findings(config_file, capsys)["fail"]
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('booking', 'pgoutput')")
    assert any("is ahead of the changelog" in text for text in findings(config_file, capsys)["fail"])


@pytest.mark.usefixtures("starts_servers")
def test_check_names_the_server_settings_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_server(settings={**SETTINGS, "wal_level": "replica", "max_replication_slots": "0"}) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE guest (id int PRIMARY KEY)")
        path = write(tmp_path / "c.toml", server.dsn(), "[tables]\ninclude = ['*']")
        assert findings(path, capsys)["fail"] == [
            "wal_level: wal_level is replica",
            "slot: all 0 of max_replication_slots are in use",
        ]


def test_check_fixes_the_publication_on_an_older_server(
    database_15: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(database_15, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    path = write(tmp_path / "c.toml", database_15, "[tables]\ninclude = ['*']")
    messages = findings(path, capsys)
    assert messages["fail"] == []
    assert "t: the log does not carry generated columns: twice" in messages["warn"]
    assert run(path, "check", "--fix") == 0
    assert "publication: publication booking has every configured table" in findings(path, capsys)["ok"]
    assert run(path, "status") == 0


@pytest.mark.xdist_group("postgres-14")
def test_check_refuses_the_setting_where_on_a_server_without_row_filters(
    database_14: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(database_14, autocommit=True) as connection:
        connection.execute("CREATE TABLE guest (id int PRIMARY KEY)")
    path = write(tmp_path / "c.toml", database_14, "[entities.guest]\ntable = 'public.guest'\nwhere = 'id > 0'")
    assert findings(path, capsys)["fail"] == ["guest: PostgreSQL 14 has no row filters"]
    assert run(path, "check", "--fix") == 1


def test_the_grants_that_init_prints_are_enough(
    config_file: Path, tables: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE ROLE owner")
        for table in ("guest", "orders", "keyless", '"Odd ""Näme"', "sales.orders", "event", "event_2026"):
            connection.execute(f"ALTER TABLE {table} OWNER TO owner".encode())
        assert run(config_file, "init", "--grants") == 0
        script = capsys.readouterr().out
        connection.execute(script.encode())
    try:
        monkeypatch.setenv("DATABASE_URL", make_conninfo(tables, user="changelog_setup"))
        assert run(config_file, "check", "--fix") == 0
        monkeypatch.setenv("DATABASE_URL", make_conninfo(tables, user="changelog_run"))
        assert run(config_file, "check") == 0
    finally:
        with psycopg.connect(tables, autocommit=True) as connection:
            connection.execute(
                "DROP PUBLICATION IF EXISTS booking; DROP OWNED BY changelog_setup, changelog_run;"
                "REASSIGN OWNED BY owner TO postgres; DROP ROLE changelog_setup, changelog_run, owner"
            )


def test_drop_drops_nothing_without_yes(config_file: Path, tables: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    with psycopg.connect(tables, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION booking FOR TABLE guest")
        connection.execute("SELECT pg_create_logical_replication_slot('booking', 'pgoutput')")

        assert run(config_file, "drop", "--slot") == 0
        assert "nothing is dropped" in capsys.readouterr().out
        assert run(config_file, "drop", "--slot", "--publication", "--yes") == 0
        assert capsys.readouterr().out.splitlines()[-2:] == ["dropped publication booking", "dropped slot booking"]
        assert run(config_file, "drop") == 0
        assert "slot         booking: there is none" in capsys.readouterr().out
        slot = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'booking'").fetchone()
        assert slot is None


def test_status_before_the_first_start_says_that_nothing_is_published(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(config_file, "status") == 0
    out = capsys.readouterr().out
    assert "booking" in out
    assert "● stopped" in out
    assert "nothing is published yet" in out
    assert run(config_file, "status", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["slot"] is None
    assert status["lag"] == {"bytes": None, "seconds": None, "xids": None}


def test_a_server_that_refuses_the_connection_is_reported_in_one_line(
    tables: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = conninfo_to_dict(tables)
    for change in ({"user": "nobody"}, {"dbname": "nothing"}, {"port": 1}):
        dsn = make_conninfo("", **{**parameters, **change})
        assert run(write(tmp_path / "c.toml", dsn, "[tables]\ninclude = ['*']"), "check") == 3
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1, err
        assert os.linesep in err
