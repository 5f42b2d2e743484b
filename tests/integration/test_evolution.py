"""Tests changes of a table's columns while the service runs.

The service announces each new version of the columns in the entity `schemas`. After some kinds of change, it then reads
the table again. Before it publishes an incompatible change, it stops until an operator accepts the change.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from changelog.connectors.sinks.files.log import FileLog, read_checkpoint
from changelog.connectors.wiring.sinks import read_versions
from changelog.envelope.entity import SCHEMAS
from changelog.envelope.errors import Kind
from tests.campaigns._service import Service
from tests.integration.site import Site
from tests.patience import PATIENCE_S

ENTITIES = """
[entities.item]
table = "public.item"
"""

Row = tuple[Any, ...]


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    new_site = Site(database, tmp_path)
    new_site.sql(
        "CREATE TABLE item (id int PRIMARY KEY, name text, amount int)",
        "ALTER TABLE item REPLICA IDENTITY FULL",
        "INSERT INTO item SELECT n, 'item ' || n, n FROM generate_series(1, 100) AS n",
    )
    new_site.configure(ENTITIES)
    return new_site


def is_read(site: Site) -> bool:
    checkpoint = read_checkpoint(site.log)
    return checkpoint is not None and bool(checkpoint.windows["item"]["complete"])


def versions(site: Site) -> list[dict[str, Any]]:
    return [message["value"]["current"] for message in site.messages(SCHEMAS)]


def changes(version: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["kind"], change["column"]) for change in version["changes"]]


def table(site: Site) -> dict[str, Any]:
    return {str(row["id"]): row for (row,) in site.sql("SELECT to_json(item) FROM item")}


def write(site: Site, number: int) -> None:
    site.sql(f"INSERT INTO item (id) VALUES ({number})")


def published(site: Site, number: int) -> bool:
    return str(number) in site.state("item")


def test_the_first_version_is_announced_with_the_first_row(site: Site) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
    [first] = site.messages(SCHEMAS)
    assert first["key"] == "item"
    assert first["value"]["current"] == {
        "entity": "item",
        "version": 1,
        "key": ["id"],
        "settings": first["value"]["current"]["settings"],
        "cluster": site.checkpoint.source["system_identifier"],
        "columns": [["id", "int"], ["name", "string"], ["amount", "int"]],
        "relation": site.sql("SELECT 'item'::regclass::oid::int")[0][0],
        "changes": [],
        "mode": "FULL_TRANSITIVE",
        "breaks": [],
        "restated": [],
    }
    source = first["value"]["provenance"]["source"]
    assert (source["op"], source["table"], source["position"]) == (
        "create",
        "public.item",
        site.messages("item")[0]["value"]["provenance"]["source"]["position"],
    )


def test_commands_show_versions_only_on_a_request_for_the_entity_schemas(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item ADD COLUMN note text", "INSERT INTO item VALUES (201, 'x', 1, 'y')")
        service.until(lambda: published(site, 201))
    capsys.readouterr()
    version_lines = _lines(_output_of(site, capsys, "tail", "schemas", "--no-follow", "--json"))
    assert [(line["entity"], line["key"]) for line in version_lines] == [(SCHEMAS, "item")] * 2
    assert _lines(_output_of(site, capsys, "history", "schemas", "item", "--json")) == version_lines
    assert "note" in _output_of(site, capsys, "history", "schemas", "item")
    assert "added" in _output_of(site, capsys, "tail", "schemas", "--no-follow")
    other_lines = _lines(_output_of(site, capsys, "tail", "--no-follow", "--json", "-n", "1000"))
    assert {line["entity"] for line in other_lines} == {"item"}


def _lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_restart_announces_no_version(site: Site) -> None:
    for number in (201, 202, 203):
        with site.running() as service:
            service.until(lambda: is_read(site))
            write(site, number)
            service.until(lambda number=number: published(site, number))  # type: ignore[misc]
    assert [version["version"] for version in versions(site)] == [1]


def test_a_new_column_is_announced_before_the_first_row_that_has_it(site: Site) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item ADD COLUMN note text", "INSERT INTO item VALUES (201, 'x', 1, 'y')")
        service.until(lambda: published(site, 201))
    first, second = site.messages(SCHEMAS)
    assert second["value"]["original"] == first["value"]["current"]
    assert changes(second["value"]["current"]) == [("added", "note")]
    assert second["value"]["current"]["restated"] == []
    row = next(message for message in site.messages("item") if message["key"] == "201")
    assert row["value"]["provenance"]["source"]["position"] == second["value"]["provenance"]["source"]["position"]
    assert read_versions(FileLog(site.log))[1].columns.fields[3][0] == "note"


@pytest.mark.parametrize(
    ("statement", "kind", "column"),
    [
        ("ALTER TABLE item ADD COLUMN stock int NOT NULL DEFAULT 7", "added", "stock"),
        ("ALTER TABLE item ADD COLUMN at float DEFAULT random()", "added", "at"),
        ("ALTER TABLE item RENAME COLUMN name TO title", "replaced", "title"),
    ],
)
def test_the_table_is_read_again_after_a_change_of_its_stored_rows(
    site: Site, statement: str, kind: str, column: str
) -> None:
    site.configure(ENTITIES + '[schemas]\non_incompatible = "publish"\n')  # a rename is an incompatible change
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql(statement)
        write(site, 201)
        service.until(lambda: published(site, 201))
        service.until(lambda: is_read(site) and site.state("item") == table(site))
        write(site, 202)
        service.until(lambda: published(site, 202))
    last = versions(site)[-1]
    assert (changes(last), last["restated"]) == ([(kind, column)], [column])
    reads = [key for op, key in site.ops("item") if op == "read"]
    assert sorted(reads, key=int) == sorted([*map(str, range(1, 101))] * 2 + ["201"], key=int)


def test_the_table_is_read_again_after_a_column_is_dropped_and_added(site: Site) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item DROP COLUMN name, ADD COLUMN name text")
        write(site, 201)
        service.until(lambda: published(site, 201))
        service.until(lambda: is_read(site) and site.state("item") == table(site))
    assert changes(versions(site)[-1]) == [("moved", "amount"), ("moved", "name")]


def _output_of(site: Site, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert site.call(*words)[0] == 0
    return capsys.readouterr().out


def test_with_the_policy_ask_only_an_operators_command_makes_the_service_read_the_table_again(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.configure(ENTITIES + '[schemas]\non_restated = "ask"\n')
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item ADD COLUMN stock int DEFAULT 7")
        write(site, 201)
        service.until(lambda: published(site, 201))
    assert site.checkpoint.windows["item"] == {"complete": True, "stale": ["stock"]}
    assert site.state("item") != table(site)
    capsys.readouterr()
    assert json.loads(_output_of(site, capsys, "status", "--json"))["windows"]["item"]["stale"] == ["stock"]
    status = " ".join(_output_of(site, capsys, "status").split())
    assert "stock; `changelog republish item --all` reads the table again" in status
    assert site.call("schemas", "accept", "item", "--read-again")[0] == 0
    capsys.readouterr()
    assert "--read-again" not in _output_of(site, capsys, "status")
    with site.running() as service:
        service.until(lambda: is_read(site) and site.state("item") == table(site))
    assert site.checkpoint.windows["item"] == {"complete": True}


def test_an_incompatible_change_stops_the_service_until_an_operator_accepts_it(site: Site) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item ALTER COLUMN amount TYPE text")
        write(site, 201)
        error = service.ended()
    assert error.position is not None
    assert str(error).startswith("the columns of entity item changed in a way that is not compatible (FULL_TRANSITIVE)")
    assert f"changelog schemas accept item {error.position}" in str(error)
    assert "amount" in str(error)
    assert not published(site, 201)
    assert str(site.refused()) == str(error)
    assert site.call("schemas", "accept", "item", str(error.position))[0] == 0
    with site.running() as service:
        service.until(lambda: is_read(site) and site.state("item") == table(site))
    last = versions(site)[-1]
    assert changes(last) == [("retyped", "amount")]
    assert last["breaks"]


def test_a_change_that_is_found_while_a_table_is_read_can_be_accepted_without_losing_rows(site: Site) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
    site.sql("ALTER TABLE item ALTER COLUMN amount TYPE text")
    assert site.call("schemas", "accept", "item", "--read-again")[0] == 0
    with site.running() as service:
        error = service.ended()
    assert error.kind is Kind.STOP
    assert not is_read(site)
    assert site.call("schemas", "accept", "item", str(error.position))[0] == 0
    with site.running() as service:
        service.until(lambda: is_read(site) and site.state("item") == table(site))
    assert [changes(version) for version in versions(site)] == [[], [("retyped", "amount")]]
    assert site.checkpoint.accepted == {}


def test_the_mode_backward_accepts_a_wider_type_without_reading_the_table_again(site: Site) -> None:
    site.configure(ENTITIES + '[entities.item.schemas]\ncompatibility = "BACKWARD_TRANSITIVE"\n')
    with site.running() as service:
        service.until(lambda: is_read(site))
        site.sql("ALTER TABLE item ALTER COLUMN amount TYPE bigint")
        write(site, 201)
        service.until(lambda: published(site, 201))
    assert (changes(versions(site)[-1]), versions(site)[-1]["restated"]) == ([("retyped", "amount")], [])


def test_accept_says_why_it_refuses_an_argument(site: Site) -> None:
    assert site.refused("schemas", "accept", "item", "--read-again", code=2).startswith("the changelog is empty")
    with site.running() as service:
        service.until(lambda: is_read(site))
        assert "stop that service" in site.refused("schemas", "accept", "item", "--read-again")
    position = str(site.checkpoint.position)
    assert site.refused("schemas", "accept", "item", code=2).startswith("the command does not say what")
    assert site.refused("schemas", "accept", "thing", "--read-again", code=2).startswith("the changelog has no entity")
    assert site.refused("schemas", "accept", "item", position, code=2).startswith("the changelog is past this position")


@pytest.mark.parametrize(
    "fail_point", ["loop:read", "loop:published", "loop:confirmed", "files:synced", "files:linked"]
)
@pytest.mark.parametrize("count", [1, 2])
def test_after_a_crash_no_version_is_announced_twice_and_no_row_is_missing(
    site: Site, fail_point: str, count: int
) -> None:
    with site.running() as service:
        service.until(lambda: is_read(site))
    site.sql("ALTER TABLE item ADD COLUMN stock int DEFAULT 7", "UPDATE item SET amount = 0 WHERE id = 1")
    process = Service(site.config)
    process.start(f"{fail_point}:{count}")
    try:
        assert process.wait(PATIENCE_S), f"{fail_point} was not reached"
    finally:
        process.kill()
    with site.running() as service:
        service.until(lambda: is_read(site) and site.state("item") == table(site))
    assert [(version["version"], version["restated"]) for version in versions(site)] == [(1, []), (2, ["stock"])]
    positions = [
        (message["key"], message["value"]["provenance"]["source"]["position"]) for message in site.messages("item")
    ]
    assert len(set(positions)) == len(positions)
