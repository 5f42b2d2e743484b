"""Kills the service at fail points, and runs some of the campaigns for a few rounds.

A fail point is a named line of the service's code at which a test can kill the service. A campaign injects faults at
random moments, and then compares the changelog with the changes of the database.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.capture.table_reads import FAIL_POINTS as READING_FAIL_POINTS
from changelog.connectors.servers.postgres import PostgresServer, temporary_server
from changelog.connectors.sinks.files.layout import Resume, log_file, resume_file, sequences
from changelog.connectors.sinks.files.log import read_checkpoint
from changelog.connectors.sinks.files.sink import FAIL_POINTS as SINK_FAIL_POINTS
from changelog.connectors.sinks.kafka.repartition import FAIL_POINTS as REPARTITION_FAIL_POINTS
from changelog.connectors.sinks.kafka.sink import FAIL_POINTS as KAFKA_FAIL_POINTS
from changelog.connectors.sources.debezium.source import FAIL_POINTS as DEBEZIUM_FAIL_POINTS
from changelog.connectors.sources.postgres.crossing import FAIL_POINTS as GAP_FAIL_POINTS
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from tests.campaigns import audit, postgres, repair, state, unlogged, windows
from tests.campaigns._judge import judge
from tests.campaigns._load import ENTITIES, Load, Scale, last_write, prepare
from tests.campaigns._oracle import Oracle
from tests.campaigns._pieces import run
from tests.campaigns._service import FAIL_POINTS, ROOT, STATE_FAIL_POINTS, Service, is_read
from tests.patience import PATIENCE_S
from tests.servers import SETTINGS, fresh_database

AFTER_DAMAGE = ("files:resume-dropped", "files:set-aside")
SCALE = Scale(universe=600, big=100, pause_s=0.01)

CONFIG = """
name = "faults"
[source]
kind = "postgres"
dsn = "{dsn}"
snapshot_pages = 2
[sink]
path = "changelog"
commit_rows = 300
commit_seconds = 0.1
[service]
listen = "127.0.0.1:0"
"""

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def own_server(starts_servers: None) -> Iterator[PostgresServer]:
    """A server of this module's own. On a shared server, the service's snapshots would wait for other tests'
    transactions.
    """
    with temporary_server(settings=SETTINGS) as server:
        yield server


class Site:
    """A database under load, the service that publishes it, and an oracle: a second, independent reader of the
    database's log.
    """

    def __init__(self, dsn: str, folder: Path, seed: int) -> None:
        self.dsn, self.log = dsn, folder / "changelog"
        config = folder / "changelog.toml"
        config.write_text(CONFIG.format(dsn=dsn) + ENTITIES, "utf-8")
        prepare(dsn, 300)
        self.service = Service(config)
        self.load = Load(dsn, SCALE, seed)
        self.oracle = Oracle(dsn, folder / "frames")
        self.slot_lsn = 0

    def start(self, fail_at: str | None = None) -> None:
        """Starts the service. The first call also starts the load, as soon as the service has created its slot."""
        self.service.start(fail_at)
        if not self.slot_lsn:
            self.slot_lsn = self.service.slot_made(self.dsn, "faults")
            self.load.start()

    def judge(self) -> None:
        """Stops the load, lets the service publish everything that the load has written, and checks the changelog."""
        self.load.stop()
        end = last_write(self.dsn)
        self.service.until(
            self.log, lambda checkpoint: through_lsn(checkpoint) > end and is_read(checkpoint), PATIENCE_S
        )
        self.oracle.wait(end, PATIENCE_S)
        self.service.stop()
        self.oracle.stop()
        judge(self.dsn, self.log, self.oracle.expected(self.slot_lsn))

    def close(self) -> None:
        """Ends the service and the oracle."""
        self.service.kill()
        self.oracle.stop()


@pytest.fixture
def site(own_server: PostgresServer, tmp_path: Path, seed: int) -> Iterator[Site]:
    with fresh_database(own_server) as dsn:
        new_site = Site(dsn, tmp_path, seed)
        yield new_site
        new_site.close()


def test_every_fail_point_in_the_code_is_tested() -> None:
    texts = [file.read_text("utf-8") for file in (ROOT / "connectors").rglob("*.py")]
    fail_points = {name for text in texts for name in re.findall(r'reach\("([^"]+)"\)', text)}
    loop_points = {*FAIL_POINTS, *STATE_FAIL_POINTS}
    source_points = {*READING_FAIL_POINTS, *GAP_FAIL_POINTS, *DEBEZIUM_FAIL_POINTS}
    kafka_points = {*KAFKA_FAIL_POINTS, *REPARTITION_FAIL_POINTS}
    assert fail_points == {*loop_points, *AFTER_DAMAGE, *kafka_points, *source_points}
    assert {name for name in fail_points if name.startswith("files:")} == set(SINK_FAIL_POINTS)


@pytest.mark.parametrize("name", FAIL_POINTS)
def test_a_crash_at_a_fail_point_loses_and_repeats_nothing(site: Site, name: str) -> None:
    site.start(f"{name}:1" if "resume" in name else f"{name}:4")
    assert site.service.wait(PATIENCE_S), f"{name} was not reached"
    site.start()
    time.sleep(0.5)
    site.judge()


@pytest.mark.parametrize("name", AFTER_DAMAGE)
def test_a_crash_while_the_sink_repairs_a_damaged_log_loses_and_repeats_nothing(site: Site, name: str) -> None:
    """The test damages the sink's log as a crash of the machine would: the newest file is in the folder, but only a
    part of its content has reached the disk. The service has not yet confirmed the changes in this file to the
    database.
    """
    site.start("files:linked:5")
    assert site.service.wait(PATIENCE_S)
    newest = sequences(site.log)[-1]
    checkpoint = read_checkpoint(site.log)
    assert checkpoint is not None
    resume_file(site.log).write_bytes(Resume(sequence=newest, checkpoint=checkpoint).to_json())
    with log_file(site.log, newest).open("r+b") as file:
        file.truncate(file.seek(0, 2) // 2)
    site.start(name)
    assert site.service.wait(PATIENCE_S), f"{name} was not reached"
    site.start()
    time.sleep(0.5)
    site.judge()
    assert list((site.log / "aside").iterdir())


def test_the_service_logs_that_a_table_is_locked_and_can_be_stopped_at_once(site: Site) -> None:
    with psycopg.connect(site.dsn) as connection:
        connection.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
        site.service.start()
        deadline = time.monotonic() + PATIENCE_S
        while "lock timeout" not in site.service.said():
            site.service.check()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        site.service.stop()


@pytest.mark.usefixtures("starts_servers")
def test_campaign_postgres(seed: int) -> None:
    figures = run(postgres.campaign(seconds=3.0), 2, seed)
    assert figures["kills"] == 2


@pytest.mark.usefixtures("starts_servers")
def test_campaign_state(seed: int) -> None:
    figures = run(state.campaign(seconds=1.0), 2, seed)
    assert figures["originals"] > figures["unknown"]


@pytest.mark.usefixtures("starts_servers")
def test_campaign_windows(seed: int) -> None:
    figures = run(windows.campaign(), 2, seed)
    assert figures["reads"]


@pytest.mark.usefixtures("starts_servers")
def test_campaign_unlogged(seed: int) -> None:
    figures = run(unlogged.campaign(), 1, seed)
    assert sum(figures["edits"].values()) == unlogged.EDITS


@pytest.mark.usefixtures("starts_servers")
def test_campaign_repair(seed: int) -> None:
    figures = run(repair.campaign(rows=1_500), 2, seed)
    assert figures["kills"]
    assert figures["deletes"]


@pytest.mark.usefixtures("starts_servers")
def test_campaign_audit(seed: int) -> None:
    figures = run(audit.campaign(), 2, seed)
    assert figures["prepared"]
    assert figures["reads"]
