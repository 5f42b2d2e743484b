"""The job over a changelog on Kafka, in JSON, in Avro and as its archive; what it finds is repaired in the topics."""

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
"""By key what the changelog is made to say: in place of some columns, of a row that is lost, of one that never was."""

FOUND = {
    **{key: ("changed", sorted(each)) for key, each in PLANTED.items() if each and key not in ("12", "100")},
    "13": ("missing", []),
    "100": ("extra", []),
}
"""What a comparison says of it: members of json have no order."""

Begun = Callable[..., Site]


@pytest.fixture
def begun(database: str, broker: Broker, tmp_path: Path) -> Begun:
    """A changelog that has the tables, and then what is planted; no service runs."""
    fetched("jars")

    def begun(registry: Registry | None = None) -> Site:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLES.encode())
        site = Site(database, broker, tmp_path, tables={"thing": 3, "other": 1}, registry=registry, rest=REST)
        with site.running() as service:
            service.until(site.is_read)
        site.plant("thing", PLANTED)
        return site

    return begun


def test_what_is_planted_in_topics_is_found_there_and_in_their_archive(begun: Begun, run: Run) -> None:
    site = begun()
    place = ("--archive", str(site.config.parent / "archive"))
    run(archive.JOB, site.config, *place)
    with site.running() as service:
        for words, kind in (((), "kafka"), (place, "archive")):
            found = run(detect_drift.JOB, site.config, *words, code=1)
            assert found.drifted() == FOUND
            assert (found.report["changelog"]["kind"], found.report["exact"]) == (kind, True)
            entities = found.report["entities"]
            assert (entities["thing"]["sourceRows"], entities["thing"]["changelogRows"]) == (31, 31)
            assert (entities["other"]["verdict"], entities["other"]["changelogRows"]) == ("clean", 5)
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            connection.execute("UPDATE other SET note = 'after'")
        service.until(lambda: site.state("other")["5"]["note"] == "after")
        behind = run(detect_drift.JOB, site.config, *place, "--wait", "1", code=5).report
        assert behind["verdict"] == "not caught up"
        assert behind["why"].startswith(f"the archive in {place[1]} lacks messages of ")


def test_what_is_planted_in_avro_is_found_repaired_and_verified(begun: Begun, run: Run, registry: Registry) -> None:
    site = begun(registry)
    before = len(site.records("thing"))
    with site.running():
        found = run(detect_drift.JOB, site.config, "--repair", code=1)
        assert found.drifted() == FOUND
        entities = found.report["entities"]
        thing = entities["thing"]
        assert (thing["action"]["do"], thing["history"]["republished"]) == ("republish", len(FOUND))
        assert entities["other"]["repaired"] is None
        verified = run(detect_drift.JOB, site.config).report["entities"]["thing"]
        assert (verified["drifted"], verified["history"]["verified"]) == (0, len(FOUND))
    added = {each.place.key: each.envelope.provenance.source.op.value for each in site.records("thing")[before:]}
    assert added == {key: "delete" if key == "100" else "read" for key in FOUND}
