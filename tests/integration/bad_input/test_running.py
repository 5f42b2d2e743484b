"""Tests what can happen while a service runs: signals, restarts of its database server, and tables and other objects
that are added or removed. The last test checks the smallest set of privileges with which a service runs.
"""

import contextlib
import io
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors import failpoints
from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.service import service
from changelog.connectors.sources.postgres import watch
from changelog.envelope.errors import Kind
from tests.integration.bad_input import ONE
from tests.integration.site import Site
from tests.patience import PATIENCE_S

# Signals, and a server that stops


@contextlib.contextmanager
def _process(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "changelog", "run", "--config", str(site.config)]
    with (site.folder / "service.log").open("ab") as log:
        process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _until_logged(site: Site, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in (site.folder / "service.log").read_text():
        assert time.monotonic() < deadline, (site.folder / "service.log").read_text()
        time.sleep(0.02)


def test_a_service_stores_everything_committed_before_it_stops(stopped_site: Site) -> None:
    with _process(stopped_site) as process:
        _until_logged(stopped_site, '"streaming"')
        stopped_site.sql(
            "INSERT INTO guest SELECT n, 'x' FROM generate_series(2, 20000) AS n", "INSERT INTO guest VALUES (0)"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert len(stopped_site.state("guest")) == 20_001
    _until_logged(stopped_site, '"service stopped"')
    _until_free(stopped_site)


def _until_free(site: Site) -> None:
    """Waits until the server reports the slot as free."""
    deadline = time.monotonic() + PATIENCE_S
    while site.sql("SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = current_database()"):
        assert time.monotonic() < deadline, "the slot is still read"
        time.sleep(0.02)


def test_the_service_tells_its_manager_that_it_has_started_is_alive_and_stops(
    stopped_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{stopped_site.name}")
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{stopped_site.name}")
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        with _process(stopped_site) as process:
            assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            process.send_signal(signal.SIGTERM)
            # The socket must be read until the end: a full one would lose messages.
            while (notification := manager.recv(100)) == b"WATCHDOG=1":
                pass
            assert notification == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0


def test_a_second_signal_stops_the_service_at_once(stopped_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"loop:read@{5 * PATIENCE_S}")
    with _process(stopped_site) as process:
        _until_logged(stopped_site, '"waiting at a fail point"')  # at this fail point, the service's loop waits
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:  # until the service has handled the first signal, it ignores others
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.returncode == service.STOPPED_AT_ONCE


def test_the_service_waits_for_a_server_that_restarts_or_does_not_run_yet(
    stopped_site: Site, server: PostgresServer
) -> None:
    with stopped_site.running() as running:
        running.until(lambda: running.said("streaming"))
        stopped_site.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: len(stopped_site.ops("guest")) == 2)
        stop_s = _duration_s(lambda: server.stop("fast"))
        running.until(lambda: running.said("connection lost") and running.phase == "not ready")
        server.start()
        running.until(lambda: running.phase == "streaming")
        stopped_site.sql("INSERT INTO guest VALUES (3)")
        running.until(lambda: len(stopped_site.ops("guest")) == 3)
    assert stop_s < 5
    assert stopped_site.ops("guest") == [("read", "1"), ("create", "2"), ("create", "3")]
    server.stop("fast")
    with stopped_site.running() as running:
        running.until(lambda: running.said("connection lost"))
        server.start()
        stopped_site.sql("INSERT INTO guest VALUES (4)")
        running.until(lambda: len(stopped_site.ops("guest")) == 4)
        [loss, *_] = [event for event in running.events() if event["event"] == "connection lost"]
    assert loss["error"].startswith("cannot connect to PostgreSQL: ")
    assert loss["error"].endswith("; is the server running and reachable?")  # libpq's text is in between
    assert loss["level"] == "warning"
    assert loss["retry_in_s"] >= 0.5


def _duration_s(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


# Tables of every kind, and tables that are added and removed


def test_a_table_is_added_and_removed(stopped_site: Site) -> None:
    stopped_site.sql("CREATE TABLE room (id int PRIMARY KEY)", "INSERT INTO room SELECT generate_series(1, 3)")
    stopped_site.configure(ONE + "[entities.room]\ntable = 'public.room'")
    assert f"publication {stopped_site.name} lacks table public.room; ALTER PUBLICATION" in stopped_site.refused()
    assert stopped_site.call("check", "--fix")[0] == 0
    stopped_site.sql("INSERT INTO room VALUES (4)", "INSERT INTO guest VALUES (2)")
    with stopped_site.running() as running:
        running.until(lambda: len(stopped_site.state("room")) == 4 and len(stopped_site.state("guest")) == 2)
        stopped_site.sql("INSERT INTO guest VALUES (3)", "DELETE FROM room WHERE id = 4")
        running.until(lambda: len(stopped_site.state("room")) == 3 and len(stopped_site.state("guest")) == 3)
    assert stopped_site.ops("guest") == [("read", "1"), ("create", "2"), ("create", "3")]
    stopped_site.configure(ONE)
    assert (
        "the configuration no longer fits the changelog: entity room was removed; restore the earlier configuration"
        in stopped_site.refused()
    )
    stopped_site.sql("INSERT INTO room VALUES (5)", "INSERT INTO guest VALUES (4)")
    with stopped_site.running(accept=True) as running:
        running.until(lambda: len(stopped_site.state("guest")) == 4)
    assert len(stopped_site.state("room")) == 3


EVERY_KIND = """
CREATE TABLE guest (id int PRIMARY KEY, region int NOT NULL, name text, email text, phone text, secret text,
    low text GENERATED ALWAYS AS (lower(name)) STORED, twice int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE guest REPLICA IDENTITY FULL;
CREATE TABLE place (id int, region int, name text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE place_1 PARTITION OF place FOR VALUES IN (1);
CREATE TABLE place_2 PARTITION OF place FOR VALUES IN (2);
CREATE TABLE unit (code text NOT NULL, size int NOT NULL, note text);
CREATE UNIQUE INDEX unit_code ON unit (code, size);
ALTER TABLE unit REPLICA IDENTITY USING INDEX unit_code;
CREATE SCHEMA "Süd";
CREATE TABLE "Süd".guest (id int PRIMARY KEY);
CREATE TABLE "Süd"."Zimmer ""groß""." ("Nr." int PRIMARY KEY, "Größe" text);
"""

ENTITIES = """
[mask]
key = "sixteen letters at least"
[entities.guest]
table = "public.guest"
partition_by = ["region"]
partitions = 5
where = "region > 0"
exclude_columns = ["secret", "twice"]
mask = { name = "null", email = "sha256", phone = "drop" }
[entities.place]
table = "public.place"
key = ["id", "region"]
[entities.unit]
table = "unit"
key = ["size", "code"]
partitions = 3
[entities.south-guest]
table = "Süd.guest"
[entities.zimmer]
table = 'Süd."Zimmer ""groß""."'
"""

COLUMNS = {
    "guest": ("id", "region", "name", "email", "low"),
    "place": ("id", "region", "name"),
    "unit": ("code", "size", "note"),
    "south-guest": ("id",),
    "zimmer": ("Nr.", "Größe"),
}


def _fill(site: Site, first: int) -> None:
    """Inserts ten rows into each table. `first` is the number of the first row."""
    names = {"first": first, "rows": f"generate_series({first}, {first + 9}) AS n"}
    for statement in (
        "INSERT INTO guest SELECT n, n % 3, 'Ada', 'ada@example.org', '555', 'hush' FROM {rows}",
        "INSERT INTO place SELECT n, n % 2 + 1, 'somewhere' FROM {rows}",
        "INSERT INTO unit SELECT 'ü\"' || n, n FROM {rows}",
        'INSERT INTO "Süd".guest SELECT n FROM {rows}',
        'INSERT INTO "Süd"."Zimmer ""groß""." SELECT n, \'weit\' FROM {rows}',
    ):
        site.sql(statement.format(**names))


def test_rows_of_every_kind_of_table_are_the_same_whether_read_or_streamed(database: str, tmp_path: Path) -> None:
    site = Site(database, tmp_path)
    site.sql(EVERY_KIND)
    site.configure(ENTITIES)
    _fill(site, 10)
    with site.running() as running:
        running.until(lambda: len(site.messages()) == 47)
        _fill(site, 20)
        running.until(lambda: len(site.messages()) == 94)
        site.sql("UPDATE guest SET region = 0 WHERE id = 20", "UPDATE place SET region = 2 WHERE id = 10")
        site.sql("BEGIN; DELETE FROM place WHERE id = 12; INSERT INTO place VALUES (12, 1, 'again'); COMMIT")
        running.until(lambda: len(site.messages()) == 98)
    for entity, columns in COLUMNS.items():
        for op in ("read", "create"):
            messages = [
                message for message in site.messages(entity) if message["value"]["provenance"]["source"]["op"] == op
            ]
            assert {tuple(message["value"]["current"]) for message in messages} == {columns}
    guests = [message for message in site.messages("guest") if message["value"]["current"]]
    assert {message["value"]["current"]["name"] for message in guests} == {None}
    [email] = {message["value"]["current"]["email"] for message in guests}
    assert "@" not in email
    regions = {(message["value"]["current"]["region"], message["partition"]) for message in guests}
    assert len(regions) == len({region for region, _ in regions}) == 2
    assert site.ops("guest")[-1] == ("delete", "20")
    assert site.ops("place")[-3:] == [("delete", '["10","1"]'), ("create", '["10","2"]'), ("update", '["12","1"]')]
    assert {key for _, key in site.ops("unit")} == {f'["{n}","ü\\"{n}"]' for n in range(10, 30)}


# Objects that a running service loses

# A slot that is in use cannot be dropped, so these statements first end the service's session. The service may
# reconnect and use the slot again before it is dropped, so both steps are repeated until the slot is gone.
TAKE_SLOT = """
DO $$ BEGIN LOOP
    PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}';
    BEGIN
        PERFORM pg_drop_replication_slot('{name}');
        RETURN;
    EXCEPTION WHEN object_in_use THEN
        PERFORM pg_sleep(0.01);
    END;
END LOOP; END $$
"""


@pytest.mark.parametrize("interval_s", [0.001, watch.READ_INTERVAL_S])
@pytest.mark.parametrize(
    ("statement", "kind", "text"),
    [
        ("DROP PUBLICATION {name}", Kind.GAP, "the publication did not exist at this point of the log"),
        ("ALTER TABLE guest DROP id", Kind.STOP, "key column id is no longer in the table public.guest"),
        (TAKE_SLOT, Kind.GAP, "replication slot {name} no longer exists"),
    ],
    ids=["publication", "key column", "slot"],
)
def test_the_loss_of_an_object_that_a_running_service_needs_is_reported(
    stopped_site: Site, monkeypatch: pytest.MonkeyPatch, statement: str, kind: Kind, text: str, interval_s: float
) -> None:
    """The service's error says what happened, no matter how often the service reads the catalogue."""
    monkeypatch.setattr(watch, "READ_INTERVAL_S", interval_s)
    with stopped_site.running() as running:
        running.until(lambda: running.said("streaming"))
        stopped_site.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: len(stopped_site.ops("guest")) == 2)
        stopped_site.sql(f"{statement.format(name=stopped_site.name)}; INSERT INTO guest VALUES (3)")
        error = running.ended()
    assert error.kind is kind
    assert text.format(name=stopped_site.name) in str(error)


# The least privileges


def test_the_least_privileges_are_enough(database: str, tmp_path: Path) -> None:
    site = Site(database, tmp_path)
    site.sql("CREATE ROLE app", "CREATE SCHEMA shop AUTHORIZATION app")
    try:
        site.sql(
            "SET ROLE app; CREATE TABLE shop.orders (id int PRIMARY KEY, note text);"
            "INSERT INTO shop.orders VALUES (1, 'x')"
        )
        site.configure('[tables]\ninclude = ["shop.*"]')
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert site.call("init", "--grants", "--dsn", database)[0] == 0
        site.sql(output.getvalue())
        site.configure('[tables]\ninclude = ["shop.*"]', dsn=make_conninfo(database, user="changelog_run"))
        line = site.refused()
        assert f"there is no publication {site.name}, and role changelog_run may not create it: " in line
        assert line.endswith("prints, then `changelog check --fix` as the setup role")
        site.configure('[tables]\ninclude = ["shop.*"]', dsn=make_conninfo(database, user="changelog_setup"))
        assert site.call("check", "--fix")[0] == 0
        site.configure('[tables]\ninclude = ["shop.*"]', dsn=make_conninfo(database, user="changelog_run"))
        assert site.call("check")[0] == 0
        with site.running() as running:
            running.until(lambda: len(site.state("shop-orders")) == 1)
            site.sql("UPDATE shop.orders SET note = 'y'")
            running.until(lambda: site.ops("shop-orders") == [("read", "1"), ("update", "1")])
        assert site.messages()[-1]["value"]["original"] == {"id": 1, "note": "x"}
        line = site.refused("drop", "--slot", "--publication", "--yes")
        assert f"publication {site.name} belongs to another role; nothing was dropped; drop it as its owner" in line
        assert site.call("drop", "--slot", "--yes")[0] == 0
    finally:
        roles = "app, changelog_setup, changelog_run"
        site.sql("DROP SCHEMA shop CASCADE", f"DROP OWNED BY {roles} CASCADE", f"DROP ROLE {roles}")
