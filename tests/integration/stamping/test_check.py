"""Tests the triggers that stamp changes: `changelog init --stamps` prints them, and `changelog check` says which tables
lack them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.site import Site


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    site.sql(
        "CREATE TABLE guest (id int PRIMARY KEY)",
        "CREATE TABLE stay (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE stay_1 PARTITION OF stay FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE private (id int PRIMARY KEY)",
    )
    site.configure("tables = { include = ['public.guest', 'public.stay'] }\n")
    return site


def finding(site: Site, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Returns the finding of `changelog check` about stamps."""
    capsys.readouterr()
    site.call("check", "--json")
    [stamps_finding] = [finding for finding in json.loads(capsys.readouterr().out) if finding["name"] == "stamps"]
    return dict(stamps_finding)


def script(site: Site, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert site.call("init", "--stamps", "--dsn", site.dsn, *words) == (0, [])
    return capsys.readouterr().out


def test_check_names_the_tables_that_lack_the_trigger(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    first_finding = finding(site, capsys)
    assert (first_finding["status"], first_finding["message"].partition(":")[0]) == (
        "ok",
        "no table has the trigger that stamps changes",
    )
    site.sql(script(site, capsys))
    assert finding(site, capsys)["message"] == "each table has the trigger that stamps changes"
    site.sql("CREATE TABLE stay_2 PARTITION OF stay FOR VALUES FROM (9) TO (99)")
    site.sql("ALTER TABLE guest DISABLE TRIGGER changelog_stamp")
    last_finding = finding(site, capsys)
    assert (last_finding["status"], last_finding["message"]) == (
        "warn",
        "these tables lack the trigger that stamps changes: public.guest, public.stay_2",
    )


def test_the_script_has_the_triggers_of_the_configured_tables_or_of_the_given_ones(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = ['"public"."guest"', '"public"."stay"', '"public"."stay_1"']
    assert [line.split(" ON ")[1] for line in triggers(script(site, capsys))] == tables
    private_triggers = triggers(script(site, capsys, "--tables", "public.p*"))
    assert [line.split(" ON ")[1] for line in private_triggers] == ['"public"."private"']


def triggers(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("CREATE OR REPLACE TRIGGER")]


def test_the_changelog_has_the_stamps_of_the_trigger(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.sql(script(site, capsys))
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "SET application_name = 'console'; INSERT INTO guest VALUES (1)",
            'BEGIN; SET LOCAL changelog.provenance = \'{"serviceName": "shop"}\'; INSERT INTO stay VALUES (2);'
            ' SAVEPOINT a; SET LOCAL changelog.provenance = \'{"serviceName": "other"}\';'
            " INSERT INTO stay VALUES (3); ROLLBACK TO a; INSERT INTO stay_1 VALUES (4);"
            " SET LOCAL changelog.provenance = ''; INSERT INTO guest VALUES (5); COMMIT",
            "BEGIN; SELECT pg_logical_emit_message(true, 'provenance', '{\"serviceName\": \"direct\"}');"
            " INSERT INTO guest VALUES (6); COMMIT",
        )
        service.until(lambda: len(site.messages()) == 5)
    services = [(message["key"], message["value"]["provenance"]["serviceName"]) for message in site.messages()]
    assert sorted(services) == [("1", "console"), ("2", "shop"), ("4", "shop"), ("5", "console"), ("6", "direct")]
