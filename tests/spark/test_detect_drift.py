"""Tests that the job `detect_drift` finds exactly the differences between a changelog and its tables, with a real
database and the real service.

The tests make most of these differences (*drift*) by editing the changelog's files.
"""

import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from changelog.connectors.servers.postgres import PostgresServer
from changelog.spark_jobs.detect_drift import JOB
from changelog.spark_jobs.runner.job import main
from tests.campaigns._plant import Edit, last_only, latest, lost, rewrite, setting
from tests.integration.site import Running, Site
from tests.servers import fresh_database
from tests.spark.ran import Run

TABLES = """
CREATE TABLE thing (
    id int PRIMARY KEY, note text, padded char(5), price float8, ratio real, amount numeric, born timestamptz, doc json,
    docb jsonb, raw bytea, tags text[], open boolean, day date
);
INSERT INTO thing SELECT n, 'note ' || n, 'ab', n / 7.0, n / 3.0, n / 9.0, timestamptz '2026-11-21 03:10:02.5+00',
    '{"b": 1, "a": [1, 2]}', '{"b": 1.50, "a": null}', '\\x00ff', ARRAY['x', NULL, 'y'], n % 2 = 0, 'infinity'
FROM generate_series(1, 40) AS n;
CREATE TABLE person (id int, unit int, email text, phone text, name text, PRIMARY KEY (id, unit));
INSERT INTO person SELECT n, n % 2, n || '@example.org', '555-' || n, 'name ' || n FROM generate_series(1, 9) AS n;
CREATE TABLE doc (id int PRIMARY KEY, n int, body text);
ALTER TABLE doc ALTER COLUMN body SET STORAGE EXTERNAL;
INSERT INTO doc SELECT n, 0, repeat('x', 9000) FROM generate_series(1, 3) AS n;
CREATE TABLE emptied (id int PRIMARY KEY, note text);
INSERT INTO emptied SELECT n, 'before' FROM generate_series(1, 5) AS n;
CREATE TABLE aged (id int PRIMARY KEY, note text, tags text[]);
INSERT INTO aged SELECT n, 'before', ARRAY['a', repeat('x', 50000)] FROM generate_series(1, 5) AS n;
CREATE TABLE event (id int PRIMARY KEY);
CREATE TABLE place (name text, number uuid, note text, PRIMARY KEY (name, number));
INSERT INTO place SELECT name, gen_random_uuid(), 'x' FROM unnest(ARRAY['a', 'B', 'b "c"', 'c', 'ä', '']) AS name;
CREATE TABLE price (price numeric(9,2) PRIMARY KEY);
"""
ENTITIES = """
[drift]
severe_ppm = 1e6
on_schema_mismatch = "ignore"
[mask]
key = "a secret of sixteen"
[entities.thing]
table = "public.thing"
[entities.person]
table = "public.person"
where = "id < 8"
mask = { email = "sha256", phone = "null", name = "drop" }
[entities.doc]
table = "public.doc"
[entities.emptied]
table = "public.emptied"
on_truncate = "publish"
on_unlogged = "ignore"
[entities.aged]
table = "public.aged"
[entities.place]
table = "public.place"
[entities.price]
table = "public.price"
[entities.event]
table = "public.event"
immutable = true
on_change_of_immutable = "ignore"
"""


@pytest.fixture(scope="module")
def site(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fresh_database(server) as dsn:
        new_site = Site(dsn, tmp_path_factory.mktemp("drift"))
        new_site.sql(TABLES)
        new_site.configure(ENTITIES)
        yield new_site


@pytest.fixture(scope="module")
def service(site: Site) -> Iterator[Running]:
    with site.running() as running:
        running.until(site.is_read)
        yield running


@pytest.fixture
def detect(run: Run, site: Site, tmp_path: Path) -> Run:
    """Returns a function that runs the job on this site."""
    return partial(run, JOB, site.config, "--out", str(tmp_path / "drift"))


def made_up(key: str) -> Edit:
    """Returns an edit that adds a copy of the row under a key that the table does not have."""
    return lambda row: [row, {**row, "key": key}]


def test_values_that_change_without_a_log_record_are_found_and_rebuilt(run: Run, database: str, tmp_path: Path) -> None:
    """A new name of an enum label, or a new expression of a generated column, changes rows without a log record."""
    site = Site(database, tmp_path)
    site.sql(
        "CREATE TYPE mood AS ENUM ('glad', 'sad')",
        "CREATE TABLE guest (id int PRIMARY KEY, mood mood, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO guest VALUES (1, 'glad'), (2, 'sad'), (3, NULL)",
    )
    site.configure('[entities.guest]\ntable = "public.guest"\n')
    with site.running() as service:
        service.until(site.is_read)
        site.sql(
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "ALTER TABLE guest ALTER COLUMN twice SET EXPRESSION AS (CASE WHEN id = 1 THEN 9 ELSE id * 2 END)",
        )
        drifted = run(JOB, site.config, "--out", str(tmp_path / "drift"), code=1).drifted()
        assert site.call("rebuild", "guest")[0] == 0
    assert sorted(drifted) == ["1", "2"]
    assert [(row["mood"], row["twice"]) for row in site.state("guest").values()] == [
        ("glad", 9),
        ("blue", 4),
        (None, 6),
    ]


def test_a_changelog_that_equals_its_tables_is_clean(site: Site, service: Running, detect: Run) -> None:
    """The tables have masks, a row filter, a large value that the log does not repeat, and a truncate. `event` is
    skipped, because it is immutable and changes of its table are ignored.
    """
    site.sql(
        "UPDATE doc SET n = 1 WHERE id = 2",
        "TRUNCATE emptied",
        "INSERT INTO emptied VALUES (2, 'after'), (9, 'after')",
        "UPDATE thing SET id = 1000 WHERE id = 40",
        "DELETE FROM person WHERE id = 1",
        "UPDATE person SET id = 70 WHERE id = 7",
    )
    report = detect().report
    assert (report["verdict"], report["exact"], report["why"]) == ("clean", True, None)
    entities = report["entities"]
    assert {name: figures["verdict"] for name, figures in entities.items() if name != "event"} == dict.fromkeys(
        ("aged", "doc", "emptied", "person", "place", "price", "thing"), "clean"
    )
    assert entities["event"]["verdict"] == "skipped"
    rows = {
        name: (figures["sourceRows"], figures["changelogRows"], figures["drifted"])
        for name, figures in entities.items()
    }
    assert rows == {
        "aged": (5, 5, 0),
        "doc": (3, 3, 0),
        "emptied": (2, 2, 0),
        "event": (None, None, None),
        "person": (5, 5, 0),
        "place": (6, 6, 0),
        "price": (0, 0, 0),
        "thing": (40, 40, 0),
    }
    assert entities["doc"]["unknown"] == {"body": 1}
    sampled = detect("--entities", "emptied", "--sample", "0.5").report
    assert sampled["verdict"] == "clean", "the truncate applies to the keys of a sample, too"
    assert report["fence"]["snapshot"].count(":") == 2
    assert report["fence"]["position"]


PLANTED: dict[str, tuple[str, dict[str, str]]] = {
    "1": ("another text", {"note": '"another"'}),
    "2": ("null instead of a text", {"note": "null"}),
    "3": ("an empty text", {"note": '""'}),
    "4": ("a text without its trailing blanks", {"padded": '"ab"'}),
    "5": ("NaN instead of a number", {"price": '"NaN"'}),
    "6": (
        "infinity instead of a number, and a date instead of infinity",
        {"price": '"Infinity"', "day": '"2026-11-21"'},
    ),
    "7": ("minus zero instead of zero", {"ratio": "-0"}),
    "8": ("the same text in another Unicode form", {"note": '"cafe\\u0301"'}),
    "9": ("a number of 30 digits whose last digit differs", {"amount": '"123456789012345678901234567890"'}),
    "10": ("an equal number with another scale", {"amount": '"1.00"'}),
    "11": ("another number in a document of type json", {"doc": '{"b": 2, "a": [1, 2]}'}),
    "12": ("an equal number with another scale in a document of type jsonb", {"docb": '{"b": 1.5, "a": null}'}),
    "13": ("bytes in which one bit differs", {"raw": '"AP4="'}),
    "14": ("an array without its null", {"tags": '["x", "y"]'}),
    "15": ("three columns", {"note": '"z"', "open": "null", "born": '"2026-11-21T03:10:02.500001Z"'}),
}
"""The planted edits of the changelog's files, by key: a description, and the new JSON of each edited column."""


def test_planted_drift_is_found_and_nothing_else(site: Site, service: Running, detect: Run) -> None:
    sets = {
        3: "note = NULL",
        7: "ratio = 0",
        8: "note = 'café'",
        9: "amount = 123456789012345678901234567891",
        10: "amount = 1.0",
        16: 'doc = \'{"a": [1,2], "b": 1}\'',
        17: "note = 'the last'",
    }
    for key, assignment in sets.items():
        site.sql(f"UPDATE thing SET {assignment} WHERE id = {key}")
    service.until(lambda: site.state("thing").get("17", {}).get("note") == "the last")
    last = latest(site.log, "thing")
    edits = {
        ("thing", key): last_only(last["thing", key]["position"], setting(values))
        for key, (_, values) in PLANTED.items()
    }
    edits["thing", "16"] = last_only(last["thing", "16"]["position"], setting({"doc": '{"b" : 1, "a":[1,2]}'}))
    edits["thing", "20"] = lost
    edits["thing", "21"] = made_up("100")
    rewrite(site.log, edits)
    ran = detect("--entities", "thing", code=1)
    thing = ran.report["entities"]["thing"]
    drifted = ran.drifted()
    assert {key: set(columns) for key, (kind, columns) in drifted.items() if kind == "changed"} == {
        key: set(values) for key, (_, values) in PLANTED.items()
    }
    assert {key: kind for key, (kind, _) in drifted.items() if kind != "changed"} == {"20": "missing", "100": "extra"}
    assert (thing["missing"], thing["extra"], thing["changed"], thing["drifted"]) == (1, 1, 15, 17)
    assert (thing["sourceRows"], thing["changelogRows"]) == (40, 40)
    samples = {sample["key"]: sample for sample in thing["samples"]}
    assert samples["7"]["columns"] == {"ratio": {"source": 0, "changelog": -0}}
    assert '"changelog":-0' in ran.beside("report.json").read_text().replace(" ", "")
    assert samples["2"]["columns"] == {"note": {"source": "note 2", "changelog": None}}
    assert samples["20"]["columns"]["note"] == {"source": "note 20"}
    assert samples["7"]["provenance"]["source"]["op"] == "update"
    assert thing["incidents"]["shape"] == "one"
    assert thing["action"]["do"] == "republish"
    half = detect("--entities", "thing", "--sample", "0.5", code=1).drifted()
    assert half == {key: drift for key, drift in drifted.items() if zlib.crc32(key.encode()) % 1_000_000 < 500_000}
    assert 0 < len(half) < len(drifted)
    ranged = detect("--entities", "thing", "--from", "9", "--below", "21", code=1)
    assert ranged.drifted() == {key: drift for key, drift in drifted.items() if 9 <= int(key) < 21}
    assert ranged.report["entities"]["thing"]["sourceRows"] == 12
    assert ranged.report["entities"]["thing"]["sampled"] == "keys from 9 below 21"
    assert detect("--entities", "thing", "--from", "21", code=1).drifted().keys() == {"100"}
    since = detect("--entities", "thing", "--since", last["thing", "7"]["position"], code=1).drifted()
    assert since.keys() == {"8", "9", "10"}  # the drifted keys that were updated after key 7


@pytest.mark.usefixtures("service")
def test_a_range_of_texts_is_ordered_by_bytes(site: Site, detect: Run) -> None:
    last = latest(site.log, "place")
    edit = setting({"note": '"y"'})
    rewrite(site.log, {entity_and_key: last_only(row["position"], edit) for entity_and_key, row in last.items()})
    ran = detect("--entities", "place", "--from", "B", "--below", "c", code=1)
    assert {json.loads(key)[0] for key in ran.drifted()} == {"B", "a", 'b "c"'}
    assert ran.report["entities"]["place"]["sourceRows"] == 3


@pytest.mark.usefixtures("service")
def test_masked_values_are_compared(site: Site, detect: Run) -> None:
    row = latest(site.log, "person")["person", '["2","0"]']
    rewrite(site.log, {("person", row["key"]): last_only(row["position"], setting({"email": '"0000"'}))})
    ran = detect("--entities", "person", code=1)
    assert ran.drifted() == {row["key"]: ("changed", ["email"])}
    assert "example.org" not in json.dumps(ran.report)


def test_changes_that_an_edit_of_the_publication_hid_are_drift(site: Site, service: Running, detect: Run) -> None:
    """The service notices that the publication was edited, but its configuration says to ignore that."""
    publication = f'ALTER PUBLICATION "{site.name}"'
    site.sql(
        "INSERT INTO emptied VALUES (20, 'before'), (21, 'before')",
        "; ".join(
            (
                f"{publication} DROP TABLE emptied",
                "UPDATE emptied SET note = 'hidden' WHERE id = 20",
                "DELETE FROM emptied WHERE id = 21",
                "INSERT INTO emptied VALUES (22, 'hidden')",
                f"{publication} ADD TABLE ONLY emptied",
            )
        ),
        "INSERT INTO emptied VALUES (23, 'seen')",
    )
    service.until(lambda: "23" in site.state("emptied"))
    service.until(lambda: service.said("changes may be missing from the log"))
    drifted = detect("--entities", "emptied", code=1).drifted()
    assert {key: kind for key, (kind, _) in drifted.items()} == {"20": "changed", "21": "extra", "22": "missing"}


def test_an_altered_table_is_no_drift(site: Site, service: Running, detect: Run) -> None:
    site.sql("ALTER TABLE aged ADD COLUMN empty int, ADD COLUMN filled int DEFAULT 7")
    aged = detect("--entities", "aged").report["entities"]["aged"]
    assert (aged["verdict"], aged["drifted"], list(aged["schemaChanged"])) == ("clean", 0, ["filled"])
    site.sql("UPDATE aged SET note = 'after' WHERE id = 1")  # with this change, the new columns get into the changelog
    service.until(lambda: site.state("aged")["5"].get("filled") == 7)
    report = detect("--entities", "aged").report
    assert report["entities"]["aged"]["verdict"] == "clean"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--entities", "nothing"], "the configuration has no entity nothing; it has: aged, "),
        (["--since", "00000009/0000000000000000/00000000"], "is beyond the end"),
        (["--archive", "elsewhere"], "leave out --archive"),
        (["--from", "1"], "--from and --below work with one entity only"),
        (["--entities", "aged", "--below", "x"], "'x' is not a value of column id: give an integer of 64 bits"),
        (
            ["--entities", "price", "--from", "1"],
            "the key of the entity price begins with column price, whose type is Decimal",
        ),
    ],
)
@pytest.mark.usefixtures("service")
def test_bad_input_is_reported_in_one_line(
    spark: SparkSession,
    site: Site,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(JOB, ["--config", str(site.config), "--out", str(tmp_path / "out"), *arguments]) == 2
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert message in line
    assert json.loads(captured.out)["verdict"] == "failed"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["--sample", "2"], ["--wait", "soon"], ["--partitions", "0"], ["--since", "monday"]]
)
def test_bad_arguments_are_reported_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(JOB, arguments)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_dry_run_says_what_it_would_read(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(JOB, ["--config", str(site.config), "--dry-run", "--entities", "thing", "person"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["verdict"] == "planned"
    assert planned["entities"] == ["person", "thing"]
    assert planned["reads"][:2] == ["public.person", "public.thing"]
