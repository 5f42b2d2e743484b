"""Kills the service once at each fail point of its Kafka sink, and runs a few rounds of the fault campaigns with Kafka.

A *fail point* is a named line of the service's code at which a test can kill the service. A *campaign* is a test that
usually runs much longer: it makes random faults, and then checks what the service has published.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.kafka import Broker
from changelog.connectors.sinks.kafka.sink import FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns import audit_kafka, debezium_topics, kafka, views
from tests.campaigns._judge import Verdict, judge_rows
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import Oracle
from tests.campaigns._pieces import run
from tests.campaigns._service import Service, is_read
from tests.campaigns._topics import Positions, Read, rows
from tests.patience import PATIENCE_S
from tests.servers import fetched, kafka_lib

SCALE = Scale(universe=600, big=100, pause_s=0.05)
ROUNDS = 3

pytestmark = pytest.mark.campaign


class Site:
    """A database under load, the service that publishes it, and an oracle: a second, independent reader of the
    database's log.
    """

    def __init__(self, dsn: str, servers: str, folder: Path, seed: int) -> None:
        self.dsn, self.servers = dsn, servers
        self.name = str(psycopg.conninfo.conninfo_to_dict(dsn)["dbname"])
        config = folder / "changelog.toml"
        settings = {"name": self.name, "dsn": dsn, "broker": servers}
        text = kafka.CONFIG.format(**settings, timeouts="", transaction_s=kafka.TRANSACTION_S)
        config.write_text(text + ENTITIES, "utf-8")
        prepare(dsn, 300)
        self.service = Service(config)
        self.load = Load(dsn, SCALE, seed)
        self.oracle = Oracle(dsn, folder / "frames", f"oracle_{self.name}")
        self.positions = Positions(servers, self.name, self.name)

    def crash(self, fail_at: str) -> int:
        """Starts the service once, so that it creates its slot. Then starts it again under load, and waits until it
        crashes at the fail point. Returns the LSN (position in the database's log) at which the slot begins.
        """
        self.service.start()
        slot_lsn = self.service.slot_made(self.dsn, self.name)
        self.load.start()
        self.service.kill()
        self.service.start(fail_at)
        assert self.service.wait(PATIENCE_S), f"{fail_at} was not reached"
        return slot_lsn

    def judge(self, slot_lsn: int) -> None:
        """Lets the service read to the end of the log, and compares all published messages with what the oracle has
        read.
        """
        self.service.start()
        time.sleep(0.5)
        self.load.stop()
        end = last_write(self.dsn)
        self.service.until_stored(
            self.positions.newest, lambda stored: through_lsn(stored) > end and is_read(stored), PATIENCE_S
        )
        self.oracle.wait(end, PATIENCE_S)
        self.service.stop()
        self.oracle.stop()
        verdict = Verdict()
        log = rows(self.servers, self.name, verdict, Read())
        judge_rows(self.dsn, log, self.oracle.expected(slot_lsn), verdict)

    def close(self) -> None:
        """Ends the service, the load and the oracle."""
        self.service.kill()
        self.load.stop()
        self.oracle.stop()
        self.positions.close()


@pytest.fixture
def site(broker: Broker, database: str, tmp_path: Path, seed: int) -> Iterator[Site]:
    new_site = Site(database, broker.bootstrap_servers, tmp_path, seed)
    yield new_site
    new_site.close()


@pytest.mark.parametrize("name", FAIL_POINTS)
def test_a_crash_at_a_fail_point_loses_and_repeats_nothing(site: Site, name: str) -> None:
    count = 1 if name == "kafka:recovered" else 4
    # With `@0.1`, the service crashes 0.1 s after it has reached the fail point. Meanwhile, queued messages are sent.
    slot_lsn = site.crash(f"{name}:{count}@0.1")
    site.judge(slot_lsn)


@pytest.mark.usefixtures("starts_servers")
def test_campaign_kafka(seed: int) -> None:
    kafka_lib()
    figures = run(kafka.campaign(), ROUNDS, seed)
    assert sum(figures["faults"].values()) >= ROUNDS


@pytest.mark.usefixtures("starts_servers")
def test_campaign_audit_kafka(seed: int) -> None:
    kafka_lib()
    figures = run(audit_kafka.campaign(), 1, seed)
    assert figures["faults"]
    assert figures["changes"]


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.xdist_group("kafka")
def test_campaign_debezium_topics(seed: int) -> None:
    kafka_lib()
    figures = run(debezium_topics.campaign(), 2, seed)
    assert sum(figures["faults"].values()) >= 2
    assert figures["aborted"]


@pytest.mark.usefixtures("starts_servers")
def test_campaign_views(seed: int) -> None:
    kafka_lib()
    fetched("streams")
    figures = run(views.campaign(instances=2, faults=("kill",), readable_s=PATIENCE_S), 1, seed)
    assert figures["faults"] == {"kill": 1}
    assert figures["changes"]
    assert {"stale 200", "min 200", "plain 200"} <= figures["answers"].keys()
