"""Tests that `changelog status` shows what it knows when something is wrong, and says what it could not find out."""

import json
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors import cli
from changelog.connectors.servers.unprivileged import free_port
from tests.integration.site import Site

GUEST = "[entities.guest]\ntable = 'public.guest'"


@pytest.fixture
def stopped_site(database: str, tmp_path: Path) -> Site:
    """A service that has read its table of one row and is stopped."""
    site = Site(database, tmp_path)
    site.sql("CREATE TABLE guest (id int PRIMARY KEY)", "INSERT INTO guest VALUES (1)")
    site.configure(GUEST)
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})
    return site


def status(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, dict[str, Any]]:
    """Returns the exit code, the output for people, and the JSON."""
    capsys.readouterr()
    code = cli.main(["status", "--config", str(path)])
    text = capsys.readouterr().out
    assert cli.main(["status", "--config", str(path), "--json"]) == code
    output = capsys.readouterr()
    return code, text + output.err, json.loads(output.out)


def test_status_without_the_database_shows_what_else_it_knows(
    stopped_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_site.configure(GUEST, dsn=make_conninfo(stopped_site.dsn, port=1))
    code, text, state = status(stopped_site.config, capsys)
    assert code == 3
    assert "● stopped" in text
    assert "cannot connect to PostgreSQL" in text
    assert state["position"] == str(stopped_site.checkpoint.position)
    assert state["entities"]["guest"]["read"] == 1
    assert state["lag"] == {"bytes": None, "seconds": None, "xids": None}


def test_status_says_running_while_the_service_reconnects(
    stopped_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped_site.configure(GUEST, dsn=make_conninfo(stopped_site.dsn, port=1))
    stopped_site.config.write_text(stopped_site.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{free_port()}"))
    with stopped_site.running() as running:
        running.until(lambda: running.said("connection lost"))
        code, text, state = status(stopped_site.config, capsys)
    assert (code, state["service"]["running"], state["service"]["phase"]) == (3, True, "reconnecting")
    assert "● reconnecting" in text


def test_status_of_a_missing_slot_says_how_to_continue(stopped_site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    stopped_site.sql("SELECT pg_drop_replication_slot(current_database())")
    code, text, state = status(stopped_site.config, capsys)
    assert (code, state["slot"], state["slot_lost"]) == (0, None, True)
    assert "slot is gone, so the changelog cannot continue; `changelog run --over-gap`" in " ".join(text.split())


def test_status_shows_who_stamped_the_newest_changes(stopped_site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    stamp = """{"serviceName": "shop"}"""
    session = """{"serviceName": "psql", "context": {"session": {"user": "u", "application": "psql"}}}"""
    with stopped_site.running() as running:
        for number, content in enumerate((stamp, stamp, session, None), 2):
            emit = "" if content is None else f"SELECT pg_logical_emit_message(true, 'provenance', '{content}');"
            stopped_site.sql(f"BEGIN; {emit} INSERT INTO guest VALUES ({number}); COMMIT")
        running.until(lambda: len(stopped_site.state("guest")) == 5)
    code, text, state = status(stopped_site.config, capsys)
    assert code == 0
    assert state["stamps"] == [
        {"entity": "guest", "service": "shop", "application": 2, "session": 0, "none": 0},
        {"entity": "guest", "service": "psql", "application": 0, "session": 1, "none": 0},
        {"entity": "guest", "service": "unknown", "application": 0, "session": 0, "none": 1},
    ]
    assert "stamps of the newest 4 changes" in text
    assert ["guest", "shop", "2", "100", "%", "·", "·"] in [line.split() for line in text.splitlines()]
