"""Tests the commands of `changelog` on MySQL and MariaDB, from `init` to `drop`."""

import json
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from changelog.connectors import cli
from changelog.connectors.servers.mysql import MysqlServer
from tests.integration.mysql.site import MysqlSite
from tests.servers.mysql import EVERY_VERSION

FOREIGN_WORDS = ("slot", "replica identity", "WAL", "publication", "PostgreSQL")
"""Words that make no sense to an operator of MySQL."""


class InitSite(MysqlSite):
    """A site whose configuration `changelog init` writes."""

    def run(self, *words: str) -> int:
        return cli.main([words[0], "--config", str(self.config), *words[1:]])

    def set_up(self) -> None:
        """Runs `init`. Changes the configuration so that the service commits often and listens at any free port."""
        assert self.run("init", "--name", self.name) == 0
        text = self.config.read_text("utf-8").replace("127.0.0.1:9464", "127.0.0.1:0")
        text = text.replace('path = "data/changelog"', 'path = "log"\ncommit_seconds = 0.05')
        self.config.write_text(text, "utf-8")


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InitSite:
    site = InitSite(mysql_server, mysql_database, tmp_path)
    site.sql(
        "CREATE TABLE item (id INT PRIMARY KEY, name VARCHAR(40))",
        "INSERT INTO item VALUES (1, 'one'), (2, 'two')",
        "CREATE TABLE `Odd.Näme` (a INT NOT NULL, b INT, UNIQUE (a))",
        "CREATE TABLE keyless (a INT)",
        "CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT NOT NULL)",
    )
    monkeypatch.setenv("DATABASE_URL", site.dsn)
    monkeypatch.chdir(tmp_path)  # `schemas generate` writes there
    return site


def test_init_writes_the_tables_of_the_database(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    tree = tomllib.loads(site.config.read_text("utf-8"))
    assert tree["source"] == {"kind": "mysql", "dsn": "env:DATABASE_URL"}
    assert {name: (entity["table"], entity["key"]) for name, entity in tree["entities"].items()} == {
        "item": (f"{site.database}.item", ["id"]),
        "odd_name": (f'{site.database}."Odd.Näme"', ["a"]),
    }
    assert f'# table = "{site.database}.keyless"' in site.config.read_text("utf-8")
    assert sorted(file.name for file in (site.folder / "schemas").iterdir()) == ["item.avsc", "odd_name.avsc"]
    out = capsys.readouterr().out
    assert "2 of 3 tables" in out
    assert "InnoDB" in out
    assert not [word for word in FOREIGN_WORDS if word in out + site.config.read_text("utf-8")]


def test_a_table_can_be_named_without_its_database(site: InitSite) -> None:
    site.configure('[entities.item]\ntable = "item"\n')
    assert site.run("check") == 0
    site.configure(f'[tables]\ninclude = ["{site.database}.i*"]\n')
    with site.running() as service:
        service.until(site.is_read)
    assert site.state("item").keys() == {"1", "2"}


@EVERY_VERSION
def test_the_grants_that_init_prints_are_enough(
    site: InitSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site.set_up()
    site.sql("DROP TABLE changelog_signal")
    capsys.readouterr()
    assert site.run("init", "--grants") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("--")]
    site.sql(*(statement for statement in "\n".join(lines).split(";") if statement.strip()))
    try:
        monkeypatch.setenv("DATABASE_URL", site.url("changelog_run"))
        assert site.run("check") == 0
        with site.running() as service:
            service.until(site.is_read)
            site.sql("DELETE FROM item WHERE id = 1")
            service.until(lambda: site.ops("item")[-1] == ("delete", "1"))
            assert site.call("republish", "item", "--keys", "2", "--wait")[0] == 0
    finally:
        site.sql("DROP USER changelog_run")


def test_an_event_trigger_is_refused(site: InitSite) -> None:
    assert "--event-trigger is for PostgreSQL" in site.refused("init", "--event-trigger", code=2)


def test_triggers_that_stamp_are_refused(site: InitSite) -> None:
    site.set_up()
    assert "--stamps is for PostgreSQL" in site.refused("init", "--stamps", code=2)


@EVERY_VERSION
def test_check_fixes_what_needs_no_restart(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    site.sql("SET GLOBAL binlog_row_metadata = MINIMAL", "SET GLOBAL binlog_row_image = NOBLOB")
    try:
        assert site.run("check") == 1
        out = capsys.readouterr().out
        assert "✗ binlog_row_metadata" in out
        assert "✗ binlog_row_image" in out
        assert site.run("check", "--fix") == 0
        assert site.sql("SELECT @@global.binlog_row_metadata, @@global.binlog_row_image") == [("FULL", "FULL")]
    finally:
        site.sql("SET GLOBAL binlog_row_metadata = FULL", "SET GLOBAL binlog_row_image = FULL")
        if site.server.flavour == "mysql":
            site.sql("RESET PERSIST")
    out = capsys.readouterr().out
    assert "changelog_signal" not in out
    assert not [word for word in FOREIGN_WORDS if word in out]


def test_status_shows_the_log(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    capsys.readouterr()
    assert site.run("status") == 0
    assert "the binary log is kept, read by no process" in " ".join(capsys.readouterr().out.split())
    with site.running() as service:
        service.until(site.is_read)
        assert site.run("status") == 0
        out = capsys.readouterr().out
        assert "the binary log is kept, read by process" in " ".join(out.split())
        assert not [word for word in FOREIGN_WORDS if word in out]
        assert site.run("status", "--json") == 0
    state = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert state["slot"]["kind"] == "log"
    assert state["slot_lost"] is False
    assert state["entities"] == {"item": {"read": 2}}


def test_tail_and_history_show_changes(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET name = 'uno' WHERE id = 1")
        service.until(lambda: ("update", "1") in site.ops("item"))
    capsys.readouterr()
    assert site.run("tail", "--no-follow") == 0
    assert '"one" → "uno"' in capsys.readouterr().out
    assert site.run("history", "item", "1") == 0
    assert "2 changes" in capsys.readouterr().out


def test_schemas_follow_the_tables(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    capsys.readouterr()
    (site.folder / "schemas").rename(site.folder / "before")
    assert site.run("schemas", "generate") == 0
    assert site.run("schemas", "check", "--against", str(site.folder / "before")) == 0
    site.sql("UPDATE item SET name = NULL", "ALTER TABLE item MODIFY name INT")
    assert site.run("schemas", "generate", "--check") == 1
    assert site.run("schemas", "generate") == 0
    assert site.run("schemas", "check", "--against", str(site.folder / "before")) == 1
    assert "name" in capsys.readouterr().out
    assert "this command is only for PostgreSQL" in site.refused("schemas", "plan", "x.sql", code=2)


def test_drop_has_nothing_to_drop(site: InitSite, capsys: pytest.CaptureFixture[str]) -> None:
    site.set_up()
    capsys.readouterr()
    assert site.run("drop") == 0
    assert "the service creates nothing on this server" in capsys.readouterr().out
    for kind, source in (("slot", "PostgreSQL"), ("publication", "PostgreSQL"), ("group", "topics of Debezium")):
        refusal = site.refused("drop", f"--{kind}", "--yes", code=2)
        assert f"--{kind} is for {source}; the service creates none for this source" in refusal


def test_the_lock_is_free_after_the_service_has_stopped(site: InitSite) -> None:
    """A running service holds a lock on the server. `drop` and `status` see from this lock that the service runs."""
    site.set_up()
    with site.running() as service:
        service.until(site.is_read)
        assert "reads the binary log for changelog" in site.refused("drop")
    with closing(site.server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, 30)", [f"changelog:{site.name}"])
        assert cursor.fetchone() == (1,)
    assert site.run("drop") == 0
