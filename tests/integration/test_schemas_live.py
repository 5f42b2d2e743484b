"""Tests that `changelog schemas check --live` compares the schema files of entities with the tables as they are now."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psycopg
import pytest

from tests.integration.site import Site

TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, guest_id int NOT NULL, nights int, amount numeric(10, 2), note text)",
    'CREATE TABLE guest ("first name" text PRIMARY KEY, email text)',
)
CONFIG = '[tables]\ninclude = ["public.*"]\n[entities.orders]\nkey = ["id"]\n'


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """Two tables, and the schema files that were generated from them."""
    new_site = Site(database, tmp_path)
    new_site.sql(*TABLES)
    new_site.configure(CONFIG)
    assert new_site.call("schemas", "generate", "--out", str(tmp_path / "schemas"))[0] == 0
    return new_site


@pytest.fixture
def check(site: Site, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Returns a function that runs `schemas check --live`, checks the exit code, and returns the output in JSON."""

    def run(*options: str, code: int | None = None) -> dict[str, Any]:
        capsys.readouterr()
        exit_code, lines = site.call("schemas", "check", "--live", "--format", "json", *options)
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert exit_code == (code if code is not None else int(not result["clean"])), lines
        return result

    return run


def findings(result: dict[str, Any], entity: str = "orders") -> list[str]:
    """Returns the findings about the entity's file, each as line, rule and path. Checks that all other files match."""
    [verdict] = [other for other in result["verdicts"] if Path(other["file"]).stem == entity]
    assert all(other["state"] == "unchanged" for other in result["verdicts"] if other is not verdict)
    return [f"{finding['line']}: {finding['rule']} {finding['path']}" for finding in verdict["findings"]]


def line_of(site: Site, text: str) -> int:
    lines = (site.folder / "schemas" / "orders.avsc").read_text("utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_generated_files_match_their_tables(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    result = check()
    assert (result["clean"], result["against"], result["notes"]) == (True, "the live tables", [])
    assert [verdict["state"] for verdict in result["verdicts"]] == ["unchanged", "unchanged"]


def test_additions_by_people_are_not_differences(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    file = site.folder / "schemas" / "orders.avsc"
    schema = json.loads(file.read_text("utf-8"))
    schema["fields"][4] |= {"doc": "what the guest said", "aliases": ["remark"]}
    file.write_text(json.dumps(schema), "utf-8")
    assert check()["clean"]


CASES: dict[str, tuple[str, list[str], str]] = {
    "added": ("ALTER TABLE orders ADD extra text", ["COLUMN_MISSING /fields/extra"], "compatible"),
    "dropped": ("ALTER TABLE orders DROP note", ["COLUMN_GONE /fields/note"], "compatible"),
    "wider": (
        "ALTER TABLE orders ALTER nights TYPE bigint",
        ["COLUMN_TYPE /fields/nights", "BRANCH_MISSING /fields/nights"],
        "incompatible",
    ),
    "renamed": (
        "ALTER TABLE orders RENAME note TO remark",
        ["COLUMN_MISSING /fields/remark", "COLUMN_GONE /fields/note", "FIELD_RENAMED /fields/remark"],
        "incompatible",
    ),
    "in another order": (
        "ALTER TABLE orders DROP note; ALTER TABLE orders ADD extra int; ALTER TABLE orders ADD note text",
        ["COLUMN_MISSING /fields/extra"],
        "compatible",
    ),
    "moved": (
        "ALTER TABLE orders DROP nights; ALTER TABLE orders ADD nights int",
        ["FILE_OUTDATED /"],
        "compatible",
    ),
}
"""For each alteration: its statements, the findings about the file (rule and path), and the state of the file."""


@pytest.mark.parametrize("case", CASES)
def test_each_alteration_of_a_table_is_reported(site: Site, check: Callable[..., dict[str, Any]], case: str) -> None:
    statements, rules, state = CASES[case]
    site.sql(*statements.split("; "))
    result = check()
    assert [line.partition(": ")[2] for line in findings(result)] == rules
    [verdict] = [verdict for verdict in result["verdicts"] if verdict["findings"]]
    assert (verdict["state"], verdict["mode"]) == (state, "FULL_TRANSITIVE")
    assert all(("compatible (" in finding["text"]) == (state == "compatible") for finding in verdict["findings"][:1])
    if "COLUMN_GONE /fields/note" in rules:
        assert f"{line_of(site, 'note')}: COLUMN_GONE /fields/note" in findings(result)
    assert site.call("schemas", "generate", "--out", str(site.folder / "schemas"))[0] == 0
    assert check()["clean"]


def test_another_key_or_partition_key_is_reported(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    site.configure(CONFIG.replace('key = ["id"]', 'key = ["id"]\npartition_by = ["guest_id"]'))
    assert [line.partition(": ")[2] for line in findings(check())] == ["PARTITION_DIFFERS /", "PARTITION_CHANGED /"]
    site.sql("CREATE UNIQUE INDEX ON orders (guest_id)")
    site.configure(CONFIG.replace('key = ["id"]', 'key = ["guest_id"]'))
    rules = [line.split()[1] for line in findings(check())]
    assert rules[:2] == ["KEY_DIFFERS", "PARTITION_DIFFERS"]
    assert "KEY_CHANGED" in rules


def test_the_mode_decides_whether_a_change_is_compatible(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    site.sql("ALTER TABLE orders ALTER nights TYPE bigint")
    result = check("--mode", "BACKWARD")
    assert [line.partition(": ")[2] for line in findings(result)] == ["COLUMN_TYPE /fields/nights"]
    [verdict] = [verdict for verdict in result["verdicts"] if verdict["findings"]]
    assert verdict["state"] == "compatible"


def test_an_entity_without_a_file_and_a_file_without_an_entity_are_reported(
    site: Site, check: Callable[..., dict[str, Any]]
) -> None:
    site.sql("ALTER TABLE guest RENAME TO visitor")
    result = check()
    assert findings(result, "visitor") == ["1: FILE_MISSING /"]
    [note] = result["notes"]
    assert Path(note.split()[0]).name == "guest.avsc"
    assert "has no entity" in note


def test_a_column_whose_name_avro_does_not_allow_is_reported_by_its_avro_name(
    site: Site, check: Callable[..., dict[str, Any]]
) -> None:
    site.sql('ALTER TABLE guest ADD "second name" text')
    assert findings(check(), "guest") == ["1: COLUMN_MISSING /fields/second_x0020_name"]


def test_only_the_named_files_are_checked(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    (site.folder / "schemas" / "guest.avsc").unlink()
    file = site.folder / "schemas" / "orders.avsc"
    result = check(str(file))
    assert [verdict["file"] for verdict in result["verdicts"]] == [str(file)]
    assert result["clean"]
    assert site.refused("schemas", "check", "--live", str(site.folder / "none.avsc"), code=2).startswith(
        f"{site.folder / 'none.avsc'}: no such file"
    )


def test_schema_files_of_other_applications_are_not_compared(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    (site.folder / "schemas" / "theirs.avsc").write_text('{"type": "record", "name": "T", "fields": []}', "utf-8")
    result = check()
    assert result["clean"]
    assert "theirs.avsc was not compared" in result["notes"][0]


@pytest.mark.parametrize("content", ["{", '{"type": "record", "name": "State", "namespace": "NAME.orders"}'])
def test_a_file_that_is_not_a_schema_is_invalid(site: Site, check: Callable[..., dict[str, Any]], content: str) -> None:
    (site.folder / "schemas" / "orders.avsc").write_text(content.replace("NAME", site.name), "utf-8")
    result = check(code=3)
    assert sorted((Path(verdict["file"]).stem, verdict["state"]) for verdict in result["verdicts"]) == [
        ("guest", "unchanged"),
        ("orders", "invalid"),
    ]


def test_without_files_each_entity_is_reported(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    for file in (site.folder / "schemas").iterdir():
        file.unlink()
    (site.folder / "schemas").rmdir()
    result = check()
    assert [verdict["findings"][0]["rule"] for verdict in result["verdicts"]] == ["FILE_MISSING", "FILE_MISSING"]


def test_contradicting_options_and_a_missing_server_are_refused(site: Site) -> None:
    assert "not allowed with" in " ".join(site.call("schemas", "check", "--live", "--against", "git:main")[1])
    site.configure(CONFIG, dsn="host=127.0.0.1 port=1")
    assert site.refused("schemas", "check", "--live").startswith("cannot connect to PostgreSQL")


def test_findings_are_printed_in_the_other_formats(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.sql("ALTER TABLE orders ADD extra int", "ALTER TABLE orders DROP note")
    file = site.folder / "schemas" / "orders.avsc"
    outputs = {}
    for name in ("text", "github", "junit"):
        capsys.readouterr()
        assert site.call("schemas", "check", "--live", "--format", name)[0] == 1
        outputs[name] = capsys.readouterr().out
    advice = "compatible (FULL_TRANSITIVE); `changelog schemas generate` writes what the table has"
    assert outputs["text"].splitlines() == [
        f'{file}: ERROR COLUMN_MISSING /fields/extra: the table has a column "extra" that the file lacks: {advice}',
        f'{file}: ERROR COLUMN_GONE /fields/note: the file has a column "note" that the table lacks: {advice}',
        "2 schemas against the live tables: 1 compatible, 1 unchanged",
    ]
    assert f"::error file={file},line={line_of(site, 'note')},title=COLUMN_GONE /fields/note::" in outputs["github"]
    assert ElementTree.fromstring(outputs["junit"]).get("failures") == "1"


def test_the_check_waits_for_no_lock_and_creates_nothing(site: Site, check: Callable[..., dict[str, Any]]) -> None:
    with psycopg.connect(site.dsn) as other:
        other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        assert check()["clean"]
    assert site.sql("SELECT count(*) FROM pg_publication") == [(0,)]


def test_the_output_in_the_documentation_is_correct(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(database, tmp_path)
    names = ("order", "guest", "session")
    site.sql(*(f"CREATE TABLE {name}s (id bigint PRIMARY KEY, nights int)" for name in names))
    site.configure("".join(f'[entities.{name}]\ntable = "public.{name}s"\n' for name in names))
    monkeypatch.chdir(tmp_path)
    assert site.call("schemas", "generate")[0] == 0
    site.sql("ALTER TABLE orders ADD voucher text", "ALTER TABLE orders ALTER nights TYPE bigint")
    Path("schemas/session.avsc").unlink()
    capsys.readouterr()
    assert site.call("schemas", "check", "--live", "schemas")[0] == 1
    docs = (Path(__file__).parents[2] / "docs" / "how-to" / "schemas.md").read_text("utf-8")
    assert f"$ changelog schemas check --live\n{capsys.readouterr().out}```" in docs
