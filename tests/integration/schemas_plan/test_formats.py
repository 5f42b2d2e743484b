"""Tests the output formats of `changelog schemas plan`, and that the documentation shows what the command prints."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integration.schemas_plan.planner import Planner
from tests.integration.site import Site

CHECKOUT = Path(__file__).parents[3]


def test_the_text_names_the_line_of_each_alteration(planner: Planner) -> None:
    code, text = planner.run("ALTER TABLE orders ADD a int DEFAULT 1;\nALTER TABLE orders\nRENAME note TO remark;")
    lines = text.replace(f"{planner.file}", "M").splitlines()
    assert code == 1
    assert lines[:3] == [
        "orders (public.orders)",
        "  M:1: + column a integer DEFAULT 1",
        "  M:2: ~ column note → remark",
    ]
    assert lines[3].startswith("  M:2: ERROR FIELD_RENAMED /fields/remark: new readers break: ")
    assert lines[4:7] == [
        (
            "  note: the service stops at the first row after the migration, "
            "until you run `changelog schemas accept orders POSITION`"
        ),
        "  note: the service reads the table again, because the log does not say what older rows hold in remark, a",
        "no change: guest, log",
    ]
    assert lines[-1].startswith("2 statements tried on database ")
    assert lines[-1].endswith("and rolled back: the service would stop (orders)")


def test_a_warning_precedes_the_rehearsal_on_a_live_database(site: Site, planner: Planner) -> None:
    planner.file.write_text("SELECT 1")
    code, [line] = site.call("schemas", "plan", str(planner.file))
    assert code == 0
    assert "holds the locks" in line
    assert site.call("schemas", "plan", str(planner.file), "--embedded") == (0, [])


def test_the_formats_github_and_junit_report_the_incompatible_change(planner: Planner) -> None:
    script = "SELECT 1;\nALTER TABLE orders ALTER nights TYPE bigint;\nALTER TABLE guest ADD a int DEFAULT 1"
    code, text = planner.run(script, "--format", "github")
    assert code == 1
    errors = [line for line in text.splitlines() if line.startswith("::error ")]
    assert [line.partition("::old")[0] for line in errors] == [
        f"::error file={planner.file},line=2,title=BRANCH_MISSING /fields/nights"
    ]
    assert "::notice::guest: the service reads the table again" in text
    code, text = planner.run(script, "--format", "junit")
    suites = ElementTree.fromstring(text)
    assert (code, suites.get("tests"), suites.get("failures")) == (1, "3", "1")
    assert [case.get("classname") for case in suites.iter("testcase") if len(case)] == ["orders"]


BOOKING_TABLES = (
    """CREATE TABLE orders (id bigint PRIMARY KEY, guest_id bigint NOT NULL, room text, arrival date, nights int,
    amount numeric(10, 2), status text, note text)""",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "CREATE TABLE guests (id bigint PRIMARY KEY, name text)",
    "CREATE TABLE sessions (id bigint PRIMARY KEY, device text)",
)
BOOKING_ENTITIES = "".join(f'[entities.{name}]\ntable = "public.{name}s"\n' for name in ("order", "guest", "session"))


def test_the_output_in_the_documentation_is_correct(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(database, tmp_path)
    site.sql(*BOOKING_TABLES, f"CREATE PUBLICATION {site.name} FOR TABLE ONLY orders, ONLY guests, ONLY sessions")
    site.configure(BOOKING_ENTITIES)
    monkeypatch.chdir(tmp_path)
    docs = (CHECKOUT / "docs" / "how-to" / "schemas.md").read_text("utf-8")
    Path("0042.sql").write_text(docs.split("```sql\n")[1].split("```")[0], "utf-8")
    code, error_lines = site.call("schemas", "plan", "0042.sql")
    output = "\n".join([*error_lines, capsys.readouterr().out])
    server = re.compile(r"database \S+ at [0-9.]+:[0-9]+")
    documented_output = docs.split("$ changelog schemas plan 0042.sql\n")[1].split("```")[0]
    assert (code, server.sub("…", output)) == (1, server.sub("…", documented_output))
    Path("0043.sql").write_text("SELECT 1;\n\nALTER TABLE order DROP b", "utf-8")
    code, error_lines = site.call("schemas", "plan", "0043.sql")
    assert f"$ changelog schemas plan 0043.sql\n{error_lines[-1]}\n" in docs
