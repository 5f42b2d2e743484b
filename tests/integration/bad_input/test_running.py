"""What happens to a service that runs: signals, servers and tables that come and go, rights that are taken away."""

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
from changelog.connectors.servers.postgres import Server
from changelog.connectors.service import service
from changelog.connectors.sources.postgres import watch
from changelog.envelope.errors import Kind
from tests.integration.bad_input import ONE
from tests.integration.site import Site
from tests.patience import PATIENCE_S

# Signals, and a server that goes away


@contextlib.contextmanager
def _process(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "changelog", "run", "--config", str(site.config)]
    with (site.folder / "said").open("ab") as said:
        process = subprocess.Popen(command, stderr=said, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _said(site: Site, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in (site.folder / "said").read_text():
        assert time.monotonic() < deadline, (site.folder / "said").read_text()
        time.sleep(0.02)


def test_a_service_that_is_told_to_stop_stores_all_that_was_committed(begun: Site) -> None:
    with _process(begun) as process:
        _said(begun, '"streaming"')
        begun.sql("INSERT INTO guest SELECT n, 'x' FROM generate_series(2, 20000) AS n", "INSERT INTO guest VALUES (0)")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert len(begun.state("guest")) == 20_001
    _said(begun, '"service stopped"')
    _until_free(begun)


def _until_free(site: Site) -> None:
    """Waits until the server has noticed that nobody reads the slot."""
    deadline = time.monotonic() + PATIENCE_S
    while site.sql("SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = current_database()"):
        assert time.monotonic() < deadline, "the slot is still read"
        time.sleep(0.02)


def test_its_manager_hears_that_it_runs_lives_and_stops(begun: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{begun.name}")
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{begun.name}")
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        with _process(begun) as process:
            assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            process.send_signal(signal.SIGTERM)
            while (last := manager.recv(100)) == b"WATCHDOG=1":  # the socket holds ten, and then loses what comes
                pass
            assert last == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0


def test_a_second_signal_stops_at_once(begun: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"loop:read@{5 * PATIENCE_S}")
    with _process(begun) as process:
        _said(begun, '"waiting at a fail point"')  # its loop stands still there
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:  # two that come before the first is handled count as one
            assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.returncode == service.STOPPED_AT_ONCE


def test_a_server_that_is_restarted_and_one_that_is_not_there_yet(begun: Site, server: Server) -> None:
    with begun.running() as running:
        running.until(lambda: running.said("streaming"))
        begun.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: len(begun.ops("guest")) == 2)
        stopped_in_s = _duration_s(lambda: server.stop("fast"))
        running.until(lambda: running.said("connection lost") and running.phase == "not ready")
        server.start()
        running.until(lambda: running.phase == "streaming")
        begun.sql("INSERT INTO guest VALUES (3)")
        running.until(lambda: len(begun.ops("guest")) == 3)
    assert stopped_in_s < 5
    assert begun.ops("guest") == [("read", "1"), ("create", "2"), ("create", "3")]
    server.stop("fast")
    with begun.running() as running:
        running.until(lambda: running.said("connection lost"))
        server.start()
        begun.sql("INSERT INTO guest VALUES (4)")
        running.until(lambda: len(begun.ops("guest")) == 4)
        [lost, *_] = [each for each in running.events() if each["event"] == "connection lost"]
    assert lost["error"].startswith("cannot connect to PostgreSQL: ")
    assert lost["error"].endswith("; is it running and reachable?")  # between them are the words of libpq
    assert lost["level"] == "warning"
    assert lost["retry_in_s"] >= 0.5


def _duration_s(do: Callable[[], object]) -> float:
    begun_at = time.monotonic()
    do()
    return time.monotonic() - begun_at


# Tables that come, go and are of every kind


def test_a_table_is_added_and_removed(begun: Site) -> None:
    begun.sql("CREATE TABLE room (id int PRIMARY KEY)", "INSERT INTO room SELECT generate_series(1, 3)")
    begun.configure(ONE + "[entities.room]\ntable = 'public.room'")
    assert f"{begun.name} lacks table public.room; ALTER PUBLICATION" in begun.refused()
    assert begun.call("check", "--fix")[0] == 0
    begun.sql("INSERT INTO room VALUES (4)", "INSERT INTO guest VALUES (2)")
    with begun.running() as running:
        running.until(lambda: len(begun.state("room")) == 4 and len(begun.state("guest")) == 2)
        begun.sql("INSERT INTO guest VALUES (3)", "DELETE FROM room WHERE id = 4")
        running.until(lambda: len(begun.state("room")) == 3 and len(begun.state("guest")) == 3)
    assert begun.ops("guest") == [("read", "1"), ("create", "2"), ("create", "3")]
    begun.configure(ONE)
    assert "the configuration no longer fits the changelog: entity room was removed; put it back" in begun.refused()
    begun.sql("INSERT INTO room VALUES (5)", "INSERT INTO guest VALUES (4)")
    with begun.running(accept=True) as running:
        running.until(lambda: len(begun.state("guest")) == 4)
    assert len(begun.state("room")) == 3


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
    """The same rows, but for their keys, each time."""
    names = {"first": first, "rows": f"generate_series({first}, {first + 9}) AS n"}
    for statement in (
        "INSERT INTO guest SELECT n, n % 3, 'Ada', 'ada@example.org', '555', 'hush' FROM {rows}",
        "INSERT INTO place SELECT n, n % 2 + 1, 'somewhere' FROM {rows}",
        "INSERT INTO unit SELECT 'ü\"' || n, n FROM {rows}",
        'INSERT INTO "Süd".guest SELECT n FROM {rows}',
        'INSERT INTO "Süd"."Zimmer ""groß""." SELECT n, \'weit\' FROM {rows}',
    ):
        site.sql(statement.format(**names))


def test_every_kind_of_table_looks_the_same_read_and_streamed(database: str, tmp_path: Path) -> None:
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
            found = [each for each in site.messages(entity) if each["value"]["provenance"]["source"]["op"] == op]
            assert {tuple(each["value"]["current"]) for each in found} == {columns}
    guests = [each for each in site.messages("guest") if each["value"]["current"]]
    assert {each["value"]["current"]["name"] for each in guests} == {None}
    [email] = {each["value"]["current"]["email"] for each in guests}
    assert "@" not in email
    regions = {(each["value"]["current"]["region"], each["partition"]) for each in guests}
    assert len(regions) == len({region for region, _ in regions}) == 2
    assert site.ops("guest")[-1] == ("delete", "20")
    assert site.ops("place")[-3:] == [("delete", '["10","1"]'), ("create", '["10","2"]'), ("update", '["12","1"]')]
    assert {key for _, key in site.ops("unit")} == {f'["{n}","ü\\"{n}"]' for n in range(10, 30)}


# While it runs

# A service that lost its connection comes back after half a second, and then holds the slot again.
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


@pytest.mark.parametrize("look_s", [0.001, watch.LOOK_S])
@pytest.mark.parametrize(
    ("mishap", "kind", "said"),
    [
        ("DROP PUBLICATION {name}", Kind.GAP, "the publication did not exist at this point of the log"),
        ("ALTER TABLE guest DROP id", Kind.STOP, "key column id is no longer in public.guest"),
        (TAKE_SLOT, Kind.GAP, "replication slot {name} does not exist"),
    ],
    ids=["publication", "key column", "slot"],
)
def test_what_is_taken_away_from_a_running_service(
    begun: Site, monkeypatch: pytest.MonkeyPatch, mishap: str, kind: Kind, said: str, look_s: float
) -> None:
    """However often it looks at the catalogue: the row that a mishap comes to light in says what happened."""
    monkeypatch.setattr(watch, "LOOK_S", look_s)
    with begun.running() as running:
        running.until(lambda: running.said("streaming"))
        begun.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: len(begun.ops("guest")) == 2)
        begun.sql(f"{mishap.format(name=begun.name)}; INSERT INTO guest VALUES (3)")
        error = running.ended()
    assert error.kind is kind
    assert said.format(name=begun.name) in str(error)


# The least rights


def test_the_least_rights_suffice(database: str, tmp_path: Path) -> None:
    site = Site(database, tmp_path)
    site.sql("CREATE ROLE app", "CREATE SCHEMA shop AUTHORIZATION app")
    try:
        site.sql(
            "SET ROLE app; CREATE TABLE shop.orders (id int PRIMARY KEY, note text);"
            "INSERT INTO shop.orders VALUES (1, 'x')"
        )
        site.configure('[tables]\ninclude = ["shop.*"]')
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert site.call("init", "--grants", "--dsn", database)[0] == 0
        site.sql(printed.getvalue())
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
