"""The job against a real database and the real service, under load and with drift planted behind its back."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.embedded import Server
from spark_jobs.detect_drift import JOB
from spark_jobs.job import main
from tests.campaigns._plant import Edit, last_only, latest, lost, rewrite, setting
from tests.integration.site import Running, Site
from tests.servers import fresh_database

TABLES = """
CREATE TABLE thing (
    id int PRIMARY KEY, note text, padded char(5), price float8, ratio real, amount numeric, born timestamptz, doc json,
    docb jsonb, raw bytea, tags text[], open boolean, day date
);
INSERT INTO thing SELECT n, 'note ' || n, 'ab', n / 7.0, n / 3.0, n / 9.0, timestamptz '2026-11-21 03:10:02.5+00',
    '{"b": 1, "a": [1, 2]}', '{"b": 1.50, "a": null}', '\\x00ff', ARRAY['x', NULL, 'y'], n % 2 = 0, 'infinity'
FROM generate_series(1, 40) AS n;
"""
ENTITIES = """
[drift]
severe_ppm = 1e6
[entities.thing]
table = "public.thing"
"""

Detect = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def site(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fresh_database(server) as dsn:
        found = Site(dsn, tmp_path_factory.mktemp("drift"))
        found.sql(TABLES)
        found.configure(ENTITIES)
        yield found


@pytest.fixture(scope="module")
def service(site: Site) -> Iterator[Running]:
    with site.running() as running:
        yield running


@pytest.fixture
def detect(spark: SparkSession, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Detect:
    """Runs the job; gives its report."""

    def detect(*words: str, code: int = 0) -> dict[str, Any]:
        given = main(JOB, ["--config", str(site.config), "--out", str(tmp_path / "drift"), *words])
        said = capsys.readouterr()
        assert given == code, said
        summary = json.loads(said.out.splitlines()[-1])
        report: dict[str, Any] = json.loads(Path(summary["report"]).with_name("report.json").read_bytes())
        report["page"], report["lines"] = summary["report"], said.err.splitlines()
        return report

    return detect


def keys(report: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """The drifted keys: kind and columns."""
    lines = Path(report["page"]).with_name("keys.jsonl").read_text("utf-8").splitlines()
    return {each["key"]: (each["kind"], each["columns"]) for each in map(json.loads, lines)}


def made_up(key: str) -> Edit:
    """Beside the row another one, of a key that the source does not have."""
    return lambda row: [row, {**row, "key": key}]


def test_a_consistent_pair_is_clean(site: Site, service: Running, detect: Detect) -> None:
    report = detect("--entities", "thing")
    thing = report["entities"]["thing"]
    assert (report["verdict"], report["exact"], thing["verdict"]) == ("clean", True, "clean")
    assert (thing["sourceRows"], thing["changelogRows"], thing["drifted"]) == (40, 40, 0)


PLANTED: dict[str, tuple[str, dict[str, str]]] = {
    "1": ("one column", {"note": '"another"'}),
    "2": ("null for a text", {"note": "null"}),
    "3": ("an empty text", {"note": '""'}),
    "4": ("trailing blanks", {"padded": '"ab"'}),
    "5": ("not a number", {"price": '"NaN"'}),
    "6": ("infinity", {"price": '"Infinity"', "day": '"2026-11-21"'}),
    "7": ("minus zero", {"ratio": "-0"}),
    "8": ("another unicode form", {"note": '"cafe\\u0301"'}),
    "9": ("30 digits", {"amount": '"123456789012345678901234567890"'}),
    "10": ("a number's other scale", {"amount": '"1.00"'}),
    "11": ("json by value", {"doc": '{"b": 2, "a": [1, 2]}'}),
    "12": ("a number in json", {"docb": '{"b": 1.5, "a": null}'}),
    "13": ("a bit", {"raw": '"AP4="'}),
    "14": ("an array", {"tags": '["x", "y"]'}),
    "15": ("many", {"note": '"z"', "open": "null", "born": '"2026-11-21T03:10:02.500001Z"'}),
}
"""By key what is altered in the log's copy: JSON by column, and why the columns differ."""


def test_what_is_planted_is_found_and_nothing_else(site: Site, service: Running, detect: Detect) -> None:
    sets = {
        3: "note = NULL",
        7: "ratio = 0",
        8: "note = 'café'",
        9: "amount = 123456789012345678901234567891",
        10: "amount = 1.0",
        16: 'doc = \'{"a": [1,2], "b": 1}\'',
        17: "note = 'the last'",
    }
    for key, what in sets.items():
        site.sql(f"UPDATE thing SET {what} WHERE id = {key}")
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
    report = detect("--entities", "thing", code=1)
    thing = report["entities"]["thing"]
    found = keys(report)
    assert {key: set(columns) for key, (kind, columns) in found.items() if kind == "changed"} == {
        key: set(values) for key, (_, values) in PLANTED.items()
    }
    assert {key: kind for key, (kind, _) in found.items() if kind != "changed"} == {"20": "missing", "100": "extra"}
    assert (thing["missing"], thing["extra"], thing["changed"], thing["drifted"]) == (1, 1, 15, 17)
    assert (thing["sourceRows"], thing["changelogRows"]) == (40, 40)
    samples = {sample["key"]: sample for sample in thing["samples"]}
    assert samples["7"]["columns"] == {"ratio": {"source": 0, "changelog": -0}}
    assert '"changelog":-0' in Path(report["page"]).with_name("report.json").read_text().replace(" ", "")
    assert samples["2"]["columns"] == {"note": {"source": "note 2", "changelog": None}}
    assert samples["20"]["columns"]["note"] == {"source": "note 20"}
    assert samples["7"]["provenance"]["source"]["op"] == "update"
    assert thing["incidents"]["shape"] == "one"
    assert thing["action"]["do"] == "republish"
