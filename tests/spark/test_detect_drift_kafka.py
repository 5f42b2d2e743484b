"""Tests that the job `detect_drift` finds the differences (*drift*) between tables and their changelog in Kafka. It
reads topics in JSON and in Avro, and an archive of topics. Also tests that drift in a topic is repaired.
"""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.spark_jobs import archive, detect_drift
from tests.integration.kafka.site import Site
from tests.servers import fetched
from tests.servers.registry import Registry
from tests.spark.ran import Run

TABLES = r"""
CREATE TABLE thing (
    id int PRIMARY KEY, note text, price float8, ratio real, amount numeric(12,2), big numeric, born timestamptz,
    doc json, docb jsonb, raw bytea, tags text[], open boolean, day date
);
INSERT INTO thing SELECT n, 'note "' || n || E'"\n\u00e9', n / 7.0, n / 3.0, n / 8.0,
    123456789012345678901234567890 + n, '2026-11-21 03:10:02.5+00', '{"b" : 1, "a":[1, 2]}', '{"b": 1.50, "a": null}',
    '\x00ff', ARRAY['x', NULL, 'y'], n % 2 = 0, 'infinity'
FROM generate_series(1, 30) AS n;
INSERT INTO thing (id, price, ratio, amount, doc, docb) VALUES (31, 0, 'NaN', 'NaN', 'null', 'null');
CREATE TABLE other (id int PRIMARY KEY, note text);
INSERT INTO other SELECT n, 'before' FROM generate_series(1, 5) AS n;
"""
REST = """
[drift]
severe_ppm = 1e6
"""
PLANTED: dict[str, dict[str, str] | None] = {
    "1": {"note": '""'},
    "2": {"note": "null", "day": '"2026-11-21"'},
    "3": {"ratio": '"-Infinity"'},
    "4": {"amount": '"0.51"'},
    "5": {"big": '"123456789012345678901234567895.0"'},
    "6": {"born": '"2026-11-21T03:10:02.500001Z"'},
    "7": {"doc": '{"b":2,"a":[1,2]}'},
    "8": {"docb": '{"b":1.5,"a":null}'},
    "9": {"raw": '"AP4="'},
    "10": {"tags": '["x","y"]'},
    "11": {"note": '"z"', "open": "null"},
    "12": {"doc": '{"a":[1,2],"b":1}'},
    "13": None,
    "31": {"price": "-0"},
    "100": {"id": "100"},
}
"""The planted drift, by key: the new JSON of some columns, or None for a lost row. The table never had key 100."""

EXPECTED_DRIFT = {
    **{key: ("changed", sorted(columns)) for key, columns in PLANTED.items() if columns and key not in ("12", "100")},
    "13": ("missing", []),
    "100": ("extra", []),
}
"""The drift that a comparison must find. Key 12 is not in it, because the order of members in JSON has no meaning."""

Planted = Callable[..., Site]


@pytest.fixture
def planted(database: str, broker: Broker, tmp_path: Path) -> Planted:
    """Returns a function that publishes the tables, stops the service, and plants the drift."""
    fetched("jars")

    def planted(registry: Registry | None = None) -> Site:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLES.encode())
        site = Site(database, broker, tmp_path, tables={"thing": 3, "other": 1}, registry=registry, rest=REST)
        with site.running() as service:
            service.until(site.is_read)
        site.plant("thing", PLANTED)
        return site

    return planted


def test_drift_in_topics_is_found_there_and_in_their_archive(planted: Planted, run: Run) -> None:
    site = planted()
    from_archive = ("--archive", str(site.config.parent / "archive"))
    run(archive.JOB, site.config, *from_archive)
    with site.running() as service:
        for arguments, kind in (((), "kafka"), (from_archive, "archive")):
            ran = run(detect_drift.JOB, site.config, *arguments, code=1)
            assert ran.drifted() == EXPECTED_DRIFT
            assert (ran.report["changelog"]["kind"], ran.report["exact"]) == (kind, True)
            entities = ran.report["entities"]
            assert (entities["thing"]["sourceRows"], entities["thing"]["changelogRows"]) == (31, 31)
            assert (entities["other"]["verdict"], entities["other"]["changelogRows"]) == ("clean", 5)
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            connection.execute("UPDATE other SET note = 'after'")
        service.until(lambda: site.state("other")["5"]["note"] == "after")
        late = run(detect_drift.JOB, site.config, *from_archive, "--wait", "1", code=5).report
        assert late["verdict"] == "not caught up"
        assert late["why"].startswith(f"the archive in {from_archive[1]} lacks messages of topic ")


def test_drift_in_avro_is_found_repaired_and_verified(planted: Planted, run: Run, registry: Registry) -> None:
    site = planted(registry)
    before = len(site.records("thing"))
    with site.running():
        ran = run(detect_drift.JOB, site.config, "--repair", code=1)
        assert ran.drifted() == EXPECTED_DRIFT
        entities = ran.report["entities"]
        thing = entities["thing"]
        assert (thing["action"]["do"], thing["history"]["republished"]) == ("republish", len(EXPECTED_DRIFT))
        assert entities["other"]["repaired"] is None
        verified = run(detect_drift.JOB, site.config).report["entities"]["thing"]
        assert (verified["drifted"], verified["history"]["verified"]) == (0, len(EXPECTED_DRIFT))
    added = {record.place.key: record.envelope.provenance.source.op.value for record in site.records("thing")[before:]}
    assert added == {key: "delete" if key == "100" else "read" for key in EXPECTED_DRIFT}
