"""Tests that `changelog schemas generate` writes a schema file for each entity, from real tables. It must keep what
people have added to a file.
"""

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors import cli
from changelog.connectors.demo import booking, postgres
from tests.integration.site import Site

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def site(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A database with two tables. The current folder is the one with the configuration."""
    monkeypatch.chdir(tmp_path)
    new_site = Site(database, tmp_path)
    new_site.sql(
        "CREATE TABLE orders (id bigint PRIMARY KEY, guest_id int NOT NULL, amount numeric(10,2), secret text)",
        "CREATE TABLE rooms (no text PRIMARY KEY, doors int[])",
    )
    new_site.configure(
        '[entities.rooms]\ntable = "rooms"\n'
        '[entities.order]\ntable = "orders"\npartition_by = ["guest_id"]\nmask = { secret = "drop" }\n'
    )
    return new_site


def output(site: Site, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[str]:
    """Returns the lines that `changelog schemas WORDS` prints."""
    capsys.readouterr()
    exit_code, lines = site.call("schemas", *words)
    assert exit_code == code, lines
    return capsys.readouterr().out.splitlines()


def schema(site: Site, entity: str = "order") -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((site.folder / "schemas" / f"{entity}.avsc").read_text("utf-8"))
    return contents


def put(site: Site, contents: dict[str, Any], entity: str = "order") -> Path:
    file = site.folder / "schemas" / f"{entity}.avsc"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(contents), "utf-8")
    return file


def test_the_demos_schema_files_match_its_tables(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(postgres.TABLES.encode())
    config = tmp_path / "changelog.toml"
    source = postgres.SOURCE.format(dsn=database)
    text = booking.CONFIG.format(source=source, sink='[sink]\npath = "log"', schema="public")
    config.write_text(text, "utf-8")
    assert cli.main(["schemas", "generate", "--config", str(config), "--out", str(SCHEMAS), "--check"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{SCHEMAS}/{entity}.avsc: unchanged" for entity in sorted(booking.COMPARED)
    ]


def test_one_file_per_entity_is_written_and_not_changed_without_need(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(site, capsys, "generate") == ["schemas/order.avsc: written", "schemas/rooms.avsc: written"]
    order = schema(site)
    assert (order["namespace"], order["key"], order["partitionBy"]) == (
        f"{site.name}.order",
        ["id"],
        ["guest_id"],
    )
    assert [field["name"] for field in order["fields"]] == ["id", "guest_id", "amount"]
    files = {file: file.read_bytes() for file in (site.folder / "schemas").iterdir()}
    assert all(content.endswith(b"}\n") for content in files.values())
    assert output(site, capsys, "generate") == ["schemas/order.avsc: unchanged", "schemas/rooms.avsc: unchanged"]
    assert {file: file.read_bytes() for file in (site.folder / "schemas").iterdir()} == files
    assert output(site, capsys, "generate", "rooms", "--out", "a/b") == ["a/b/rooms.avsc: written"]


def test_the_option_check_writes_nothing_and_reports_the_files_that_would_change(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    output(site, capsys, "generate")
    before = (site.folder / "schemas" / "order.avsc").read_bytes()
    assert output(site, capsys, "generate", "--check")[0] == "schemas/order.avsc: unchanged"
    site.sql("ALTER TABLE orders ADD note text")
    assert output(site, capsys, "generate", "--check", code=1) == [
        "schemas/order.avsc: would change",
        "schemas/rooms.avsc: unchanged",
        "",
        "nothing was written; `changelog schemas generate` writes these files",
    ]
    assert (site.folder / "schemas" / "order.avsc").read_bytes() == before
    (result,) = json.loads(output(site, capsys, "generate", "order", "--json")[0])
    assert result == {"entity": "order", "file": "schemas/order.avsc", "state": "written"}
    assert schema(site)["fields"][-1]["name"] == "note"


def test_additions_by_people_are_kept_unless_they_contradict_the_table(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    output(site, capsys, "generate")
    edited_schema = schema(site)
    edited_schema |= {
        "doc": "What a guest booked.",
        "compatibility": "BACKWARD",
        "key": ["amount"],
        "namespace": "elsewhere.x",
    }
    fields = {field["name"]: field for field in edited_schema["fields"]}
    fields["id"] |= {"doc": "of the booking", "default": 0, "owner": "billing"}
    fields["amount"] |= {"aliases": ["price", "guest_id"], "type": "string"}
    edited_schema["fields"].append({"name": "gone", "type": "int"})
    put(site, edited_schema)
    assert output(site, capsys, "generate")[0] == "schemas/order.avsc: written"
    order = schema(site)
    assert (order["doc"], order["compatibility"]) == ("What a guest booked.", "BACKWARD")
    assert (order["key"], order["namespace"]) == (["id"], f"{site.name}.order")
    assert order["fields"][0] == {"name": "id", "type": "long", "doc": "of the booking", "owner": "billing"}
    assert order["fields"][2]["aliases"] == ["price"]
    assert order["fields"][2]["type"][0] == "null"
    assert [field["name"] for field in order["fields"]] == ["id", "guest_id", "amount"]
    assert list(order)[-1] == "fields"
    assert output(site, capsys, "generate")[0] == "schemas/order.avsc: unchanged"


def test_descriptions_of_a_composite_are_kept(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.sql("CREATE TYPE bed AS (width int, soft bool)", "ALTER TABLE rooms ADD beds bed[]")
    output(site, capsys, "generate")
    edited_schema = schema(site, "rooms")
    bed = edited_schema["fields"][2]["type"][1]["items"][1]
    assert bed["name"] == "State_x002F_beds"
    bed["doc"] = "A place to sleep."
    bed["fields"][0]["doc"] = "in cm"
    put(site, edited_schema, "rooms")
    output(site, capsys, "generate")
    assert schema(site, "rooms") == edited_schema


def test_a_file_without_an_entity_is_reported(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    output(site, capsys, "generate")
    put(site, {**schema(site), "namespace": f"{site.name}.bill"}, "bill")
    put(site, {**schema(site), "namespace": "another.bill"}, "other")
    assert output(site, capsys, "generate", "--check") == [
        "schemas/order.avsc: unchanged",
        "schemas/rooms.avsc: unchanged",
        "schemas/bill.avsc: warning: there is no entity bill; remove the file once nobody reads its topic",
    ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<<<<<<< HEAD\n{}", "is not JSON: Expecting value: line 1 column 1 (char 0); correct it"),
        ('{"type": "record", "name": "State", "fields": [], "fields": []}', 'an object has the member "fields" twice'),
        ('{"type": "record", "name": "State"}', "is not an Avro schema: a record has no fields; correct it"),
        (
            '{"type": "record", "name": "Delta", "fields": []}',
            "is not the schema file of an entity; move it, or give another --out",
        ),
    ],
)
def test_a_file_that_is_not_a_schema_of_an_entity_is_not_overwritten(site: Site, content: str, problem: str) -> None:
    file = site.folder / "schemas" / "rooms.avsc"
    file.parent.mkdir()
    file.write_text(content, "utf-8")
    error = site.refused("schemas", "generate")
    assert error.startswith("the file schemas/rooms.avsc ")
    assert problem in error
    assert file.read_text("utf-8") == content
    assert not (file.parent / "order.avsc").exists()


def test_generate_refuses_an_unknown_entity_and_a_folder_that_cannot_be_written(site: Site) -> None:
    assert 'there is no entity "nothing"; there are: order, rooms' in site.refused(
        "schemas", "generate", "nothing", code=2
    )
    (site.folder / "schemas").write_text("", "utf-8")
    assert "schemas" in site.refused("schemas", "generate")
