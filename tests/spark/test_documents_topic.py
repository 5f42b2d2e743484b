"""Tests that documents of several entities can be served from a topic. `maintain_view` keeps the documents in a table
of PostgreSQL. A service publishes this table to Kafka, and `changelog views serve` answers from the topic.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from changelog.connectors import cli
from changelog.connectors.servers.kafka import Broker
from changelog.spark_jobs.maintain_view import JOB
from tests.integration.kafka.served_views import served, streams_section
from tests.integration.kafka.site import Site
from tests.patience import until
from tests.spark.documented import ENTITIES, WITH_SESSIONS, Guests, announcements, expected_documents, toml
from tests.spark.maintained import query
from tests.spark.ran import Run
from tests.spark.test_maintain_documents import CONFIG, MAINTAINED
from tests.spark.test_rebuild_view import grow
from tests.unit.views.running import Api

PUBLISHED = """on_truncate = "publish"
[provenance]
default = {{ serviceName = "maintain_view" }}
{streams}"""

OWN = ("CREATE VIEW names AS SELECT id, status FROM guests", "CREATE INDEX own ON guests (status)")
GRANT = "GRANT SELECT ON guests TO PUBLIC"
REFERENCE = "CREATE TABLE note (guest text REFERENCES guests)"

LASTING = """SELECT oid, relacl::text, (SELECT array_agg(prpubid) FROM pg_publication_rel WHERE prrelid = guests.oid),
    'own'::regclass::oid, (SELECT count(*) FROM pg_index WHERE indrelid = guests.oid)
    FROM pg_class guests WHERE relname = 'guests'"""
"""Selects what must stay the same when the view is built again."""


def test_documents_are_served_from_a_topic(
    run: Run, database: str, broker: Broker, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents follow changes of all entities. A rebuild empties the table and fills it again, but does not
    replace it. So the service goes on, and the table keeps its indexes, grants and SQL views.
    """
    monkeypatch.setenv("VIEWS_DSN", database)
    config = tmp_path / "changelog.toml"
    config.write_text(CONFIG.format(view=toml(WITH_SESSIONS)), "utf-8")
    workload = Guests(random.Random(seed))
    grow(tmp_path, [announcements(), *workload.transactions(40)], ENTITIES)
    run(JOB, config, *MAINTAINED)
    for statement in (*OWN, GRANT):
        query(database, statement)
    (tmp_path / "topic").mkdir()
    rest = PUBLISHED.format(streams=streams_section(tmp_path))
    site = Site(database, broker, tmp_path / "topic", tables={"guests": 2}, rest=rest)
    assert cli.main(["check", "--fix", "--config", str(site.config)]) == 0
    lasting = query(database, LASTING)
    with site.running() as service:
        service.until(site.is_read)
        with served(site.config) as views:
            for arguments in ([], ["--rebuild"]):
                grow(tmp_path, list(workload.transactions(10)), ENTITIES)
                run(JOB, config, *MAINTAINED, *arguments)
                expected = [document[:4] for document in expected_documents(workload.rows)]
                until(lambda expected=expected: _documents(views.api) == expected, "a document is not served")  # type: ignore[misc]
                assert query(database, LASTING) == lasting
    query(database, REFERENCE)
    assert "because a foreign key references it" in run(JOB, config, *MAINTAINED, "--rebuild", code=3).lines[0]
    assert {record.envelope.provenance.stamp.service_name for record in site.records("guests")} == {"maintain_view"}


def _documents(api: Api) -> list[tuple[Any, ...]]:
    """Returns the documents that are served: key, id, status and sessions."""
    columns = ("id", "status", "sessions")
    return [(row["key"], *(row["current"][column] for column in columns)) for row in api.rows("/guests?limit=1000")]
