"""Tests `detect_drift --repair`. The job compares tables with their changelog, and sends the differences (*drift*) to
the service as signals. The service repairs each entity as the configuration says, and the next run of the job verifies
the repairs.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from changelog.connectors.capture.tables.repairs import Repairs
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres.admin.signals import send
from changelog.envelope.signal import Signal
from changelog.spark_jobs.detect_drift import JOB
from tests.campaigns._plant import Edit, last_only, latest, lost, rewrite, setting
from tests.campaigns._service import Service, is_read
from tests.integration.site import Site
from tests.patience import PATIENCE_S
from tests.servers import fresh_database
from tests.spark.ran import Run

ROWS = 120
NAMES = ("few", "whole", "many", "unclear", "altered")
TABLES = "".join(
    f"""
CREATE TABLE {name} (id int PRIMARY KEY, note text, amount int);
ALTER TABLE {name} REPLICA IDENTITY FULL;
INSERT INTO {name} SELECT n, 'note ' || n, n FROM generate_series(1, {ROWS}) AS n;
"""
    for name in NAMES
)
ENTITIES = (
    """
[drift]
severe_ppm = 1e6
republish_keys_max = 4
"""
    + "".join(f'[entities.{name}]\ntable = "public.{name}"\n' for name in NAMES)
    + """
[entities.unclear.drift]
rebuild_ppm = 1e6
"""
)


@pytest.fixture
def site(server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with fresh_database(server) as dsn:
        new_site = Site(dsn, tmp_path)
        new_site.sql(TABLES)
        new_site.configure(ENTITIES)
        yield new_site


@pytest.fixture
def detect(run: Run, site: Site) -> Run:
    """Returns a function that runs the job on this site."""
    return partial(run, JOB, site.config)


def plant(site: Site) -> None:
    """Edits the changelog's files, so that every table has drift: altered rows, and for some tables also a lost row and
    a row that never existed.
    """
    rows = {entity_and_key: row for name in NAMES for entity_and_key, row in latest(site.log, name).items()}
    edits: dict[tuple[str, str], Edit] = {}

    def alter(name: str, *keys: int) -> None:
        for key in keys:
            entity_and_key = name, str(key)
            edits[entity_and_key] = last_only(rows[entity_and_key]["position"], setting({"note": '"another"'}))

    alter("few", 1, 2)
    edits["few", "3"] = lost
    edits["few", "4"] = made_up(1000)
    alter("whole", *range(1, ROWS + 1))
    alter("many", *range(1, 5))
    edits["many", "5"] = lost
    edits["many", "6"] = made_up(1000)
    alter("unclear", *range(1, 6))
    alter("altered", 1)
    rewrite(site.log, edits)


def made_up(key: int) -> Edit:
    """Returns an edit that adds a copy of the row under a key that the table does not have."""
    return lambda row: [row, *setting({"id": str(key)})({**row, "key": str(key)})]


def members(report: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Returns these members of each entity's report. The members of `action` and `history` count as members of the
    report itself.
    """
    return {
        name: tuple({**entity, **entity["action"], **entity["history"]}[member] for member in names)
        for name, entity in report["entities"].items()
    }


def test_the_policy_is_carried_out_and_the_next_run_verifies_it(site: Site, detect: Run) -> None:
    with site.running() as service:
        service.until(lambda: all(len(site.state(name)) == ROWS for name in NAMES))
        plant(site)
        site.sql("ALTER TABLE altered ADD COLUMN filled int DEFAULT 7")
        actions = {
            "few": ("republish", 4),
            "whole": ("rebuild", ROWS),
            "many": ("rebuild", 6),
            "unclear": ("stop", 5),
            "altered": ("stop", 1),
        }
        first = detect(code=4).report
        assert members(first, "do", "drifted") == actions
        assert members(first, "open", "republished", "verified", "repaired") == {
            name: (drifted, 0, 0, None) for name, (_, drifted) in actions.items()
        }
        assert not site.checkpoint.repairs
        second = detect("--repair", code=4).report
        assert members(second, "do", "drifted") == actions
        repairs = {name: entity["repaired"] for name, entity in second["entities"].items()}
        assert {name for name, repaired in repairs.items() if repaired} == {"few", "whole", "many"}
        assert members(second, "open", "republished", "verified") == {
            name: (0, drifted, 0) if repairs[name] else (drifted, 0, 0) for name, (_, drifted) in actions.items()
        }
        third = detect("--repair", code=4).report
    assert members(third, "do", "drifted") == {
        name: ("none", 0) if repairs[name] else action for name, action in actions.items()
    }
    assert members(third, "open", "republished", "verified", "repaired") == {
        name: (0, 0, drifted, None) if repairs[name] else (drifted, 0, 0, None)
        for name, (_, drifted) in actions.items()
    }
    signals = {id_ for repaired in repairs.values() if repaired for id_ in repaired["signals"]}
    outcomes = Repairs.parse(site.checkpoint.repairs).ended
    assert outcomes.keys() == signals
    assert sorted(outcomes.values()) == ["done"] * (len(signals) - 1) + [
        "done, 1 absent"
    ]  # the table lacks the made-up key
    for name in ("few", "whole", "many"):
        assert site.state(name) == {str(row["id"]): row for (row,) in site.sql(f"SELECT to_json(t) FROM {name} AS t")}
    assert {op for op, _ in site.ops("few")[ROWS:]} == {"read", "delete"}


def test_a_comparison_waits_for_a_repair_that_was_requested_before(site: Site, detect: Run) -> None:
    service = Service(site.config)
    try:
        service.start()
        service.until(site.log, is_read, PATIENCE_S)
        plant(site)
        service.pause()
        with psycopg.connect(site.dsn, autocommit=True) as connection:
            send(connection, Signal(do="rebuild", id="asked", entity="few"), None)
        wakes = threading.Thread(target=_wake_once_fenced, args=(site, service))
        wakes.start()
        report = detect("--entities", "few", code=0).report
        wakes.join()
        assert report["entities"]["few"]["changelogRows"] == ROWS
        assert Repairs.parse(site.checkpoint.repairs).ended == {"asked": "done"}
        service.stop()
    finally:
        service.kill()


def _wake_once_fenced(site: Site, service: Service) -> None:
    """Wakes the paused service once the comparison holds its locks. A comparison takes its locks before it takes its
    snapshot.
    """
    locks = "SELECT 1 FROM pg_locks WHERE relation = 'few'::regclass AND mode = 'AccessShareLock' AND granted"
    deadline = time.monotonic() + PATIENCE_S
    while not site.sql(locks) and time.monotonic() < deadline:
        time.sleep(0.05)
    service.wake()
