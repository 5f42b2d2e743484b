"""What a hostile operator does: every mistake is one clear line, and every way out that a line names is one."""

import contextlib
import io
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
import structlog
from psycopg.conninfo import make_conninfo

from connectors import service
from connectors.embedded import Server, temporary_server
from connectors.sources.postgres import source
from connectors.sources.postgres.connection import ANEW
from connectors.sources.postgres.wire import ReplicationConnection
from envelope.errors import Kind
from tests.integration.site import Site
from tests.servers import SETTINGS, fresh_database

SECRET = "opensesame"
GUEST = """
CREATE TABLE guest (id int PRIMARY KEY, name text, email text);
ALTER TABLE guest REPLICA IDENTITY FULL;
INSERT INTO guest VALUES (1, 'Ada', 'ada@example.org')
"""
ONE = """
[entities.guest]
table = "public.guest"
"""


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is held stays so: nobody was killed here."""
    monkeypatch.setattr(service, "_FIRST_PATIENCE_S", 0.3)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """A service over one table of one row."""
    made = Site(database, tmp_path)
    made.sql(GUEST)
    made.configure(ONE)
    return made


@pytest.fixture
def begun(site: Site) -> Site:
    """One that has read its table, and was stopped."""
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})
    return site


@pytest.fixture(scope="module")
def spare() -> Iterator[Server]:
    """A server of another cluster, begun without logical decoding."""
    with temporary_server(settings={**SETTINGS, "wal_level": "replica"}) as running:
        yield running


# Where the service should go


def test_a_wrong_password(site: Site, server: Server) -> None:
    rules = server.data_dir / "pg_hba.conf"
    kept = rules.read_text()
    site.sql("DROP ROLE IF EXISTS locked", "CREATE ROLE locked LOGIN PASSWORD 'right'")
    try:
        rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + kept)
        site.sql("SELECT pg_reload_conf()")
        site.configure(ONE, dsn=make_conninfo(site.dsn, user="locked", password=SECRET))
        for command in ("run", "check", "status", "drop"):
            line = site.refused(command)
            assert 'password authentication failed for user "locked"; check user and password in [source] dsn' in line
            assert SECRET not in line
    finally:
        rules.write_text(kept)
        site.sql("SELECT pg_reload_conf()", "DROP ROLE locked")


def test_a_server_without_logical_decoding_and_a_standby(spare: Server, tmp_path: Path) -> None:
    with fresh_database(spare) as dsn:
        site = Site(dsn, tmp_path)
        site.sql(GUEST)
        site.configure(ONE)
        assert site.refused() == (
            "wal_level: wal_level is replica; ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        )
        assert site.sql("SELECT 1 FROM pg_publication") == []


def test_a_standby(site: Site, server: Server) -> None:
    folder = server.data_dir.parent / "standby"
    server.run("pg_basebackup", "--dbname", server.dsn(), "--pgdata", str(folder), "-R", "-X", "stream", "-c", "fast")
    with Server(server.bin_dir, folder, settings={**SETTINGS, "hot_standby": "on"}) as standby:
        site.configure(ONE, dsn=standby.dsn(site.name))
        line = site.refused()
    assert line == "primary: the server is a standby; connect to the primary: the service writes marks into its log"


def test_a_database_whose_text_is_of_any_encoding(server: Server, tmp_path: Path) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            site = Site(server.dsn("bytes"), tmp_path)
            site.sql(GUEST)
            site.configure(ONE)
            assert "the database's encoding is SQL_ASCII: its text may be of any; move it" in site.refused()
        finally:
            admin.execute("DROP DATABASE bytes WITH (FORCE)")


# What the configuration says


def test_a_malformed_configuration_is_told_all_at_once(site: Site) -> None:
    site.config.write_text(
        """
        name = "Booking!"
        sink = { paht = "log" }
        source = { kind = "postgres", dsn = "env:NOT_THERE" }
        [entities.guest]
        table = 5
        partitions = 0
        mask = { email = "sha512" }
        """
    )
    code, lines = site.call("run")
    assert code == 2
    assert lines[0] == f"changelog: {site.config}: 7 problems"
    assert sorted(line.split(":")[0].strip() for line in lines[1:]) == [
        "entities.guest.mask.email", "entities.guest.partitions", "entities.guest.table", "name", "sink.paht",
        "sink.path", "source.dsn",
    ]  # fmt: skip
    site.config.write_text("name = [")
    assert "is not TOML: " in site.refused(code=2)
    site.config.write_bytes(b"\xff")
    assert "is not UTF-8 at byte 0" in site.refused(code=2)
    site.config.unlink()
    assert "no such file; write one with `changelog init" in site.refused(code=2)


TABLES = """
CREATE TABLE bare (id int NOT NULL);
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE);
CREATE TABLE part (id int NOT NULL, gone bool);
CREATE UNIQUE INDEX part_id ON part (id) WHERE NOT gone;
CREATE TABLE soft (id int UNIQUE)
"""

KEYLESS = """
[entities.absent]
table = "public.gusets"
[entities.bare]
table = "public.bare"
[entities.late]
table = "public.late"
[entities.part]
table = "public.part"
key = ["id"]
[entities.soft]
table = "public.soft"
key = ["id"]
"""


def test_tables_that_cannot_be_published(site: Site) -> None:
    site.sql(TABLES)
    site.configure(KEYLESS)
    code, lines = site.call("run")
    assert code == 2
    assert lines == [
        "changelog: configuration: 5 problems",
        "  entities.absent.table: the database has no table public.gusets; create it, or correct the name",
        '  entities.bare: public.bare has no primary key; add key = ["COLUMN"], or exclude the table',
        "  entities.late.key: the unique index late_pkey of public.late is deferrable; create another on (id)",
        "  entities.part.key: the unique index part_id of public.part is partial; create another on (id)",
        "  entities.soft.key: column id of public.soft may be null; make it NOT NULL",
    ]
    site.configure('[entities.absent]\ntable = "public.gusets"\n')
    assert site.refused(code=2).startswith("configuration: entities.absent.table: the database has no table")


def test_a_publication_that_lacks_a_table(site: Site) -> None:
    site.sql("CREATE TABLE other (id int PRIMARY KEY)", f"CREATE PUBLICATION {site.name} FOR TABLE other")
    line = site.refused()
    assert f"{site.name} publishes partitions under their own names (and 1 more: see `changelog check`)" in line
    site.sql(f"ALTER PUBLICATION {site.name} SET (publish_via_partition_root = true)")
    assert f'{site.name} lacks table public.guest; ALTER PUBLICATION "{site.name}" ADD TABLE' in site.refused()
    assert site.call("check", "--fix")[0] == 0
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})


def test_a_publication_that_loses_a_table(begun: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the service runs it looks now and then; what it misses while stopped, its next start says."""
    monkeypatch.setattr(source, "PUBLICATION_LOOK_S", 0.1)
    lost = "no longer has all changes of public.guest, and the changelog was begun with it"
    with begun.running() as running:
        begun.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: "2" in begun.state("guest"))
        begun.sql(f"ALTER PUBLICATION {begun.name} SET (publish = 'insert')")
        error = running.ended()
    assert (error.kind, lost in str(error)) == (Kind.GAP, True)
    assert lost in begun.refused()
    begun.sql(f"DROP PUBLICATION {begun.name}")
    assert lost in begun.refused()


def test_a_publication_with_a_column_list(site: Site) -> None:
    site.sql(f"CREATE PUBLICATION {site.name} FOR TABLE guest (id) WITH (publish_via_partition_root = true)")
    line = site.refused()
    assert f"{site.name} has a column list on public.guest; take it off: columns are left out by [entities.X]" in line


# Where the log should go


def test_a_folder_that_cannot_be_written(site: Site) -> None:
    (site.folder / "file").write_text("")
    for path in ("file", "file/log", "/proc/log", "/sys/log"):
        site.configure(ONE, path=path)
        line = site.refused()
        assert re.match(rf"cannot store in .*{path}: .*; .*", line), line
        assert site.call("check")[0] == 1


def test_a_full_disk_loses_and_repeats_nothing(site: Site) -> None:
    site.sql("INSERT INTO guest SELECT n, md5(n::text), md5((-n)::text) FROM generate_series(2, 5000) AS n")
    with _files_of_at_most(100_000):
        line = site.refused()
        assert line.startswith(f"cannot store in {site.log}: File too large; make room, then start again: nothing is")
    site.sql("UPDATE guest SET name = 'new' WHERE id <= 100", "DELETE FROM guest WHERE id = 7")
    with site.running() as running:
        running.until(lambda: len(site.state("guest")) == 4999 and ("delete", "7") in site.ops("guest"))
    names = [name for (name,) in site.sql("SELECT name FROM guest ORDER BY id")]
    assert [row["name"] for _, row in sorted(site.state("guest").items(), key=lambda item: int(item[0]))] == names
    seen = [each["value"]["provenance"]["source"]["position"] for each in site.messages()]
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


@contextlib.contextmanager
def _files_of_at_most(nbytes: int) -> Iterator[None]:
    """No file of this process may grow beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Who holds what


def test_two_services_of_one_name(begun: Site) -> None:
    with begun.running() as running:
        running.until(lambda: bool(begun.sql("SELECT 1 FROM pg_stat_replication")))
        begun.configure(ONE, path="other")
        assert re.fullmatch(
            rf"replication slot {begun.name} is read by process \d+ \(changelog\); stop that one first",
            begun.refused(),
        )
        assert begun.refused("drop", "--slot", "--yes").endswith("(changelog); stop that one first")


def test_a_slot_that_another_program_reads(begun: Site) -> None:
    connection = ReplicationConnection.connect(make_conninfo(begun.dsn, application_name="pg_recvlogical"))
    connection.start(begun.name, 0, {"proto_version": "1", "publication_names": begun.name})
    try:
        line = begun.refused()
        assert re.fullmatch(rf"replication slot {begun.name} is read by process \d+ \(pg_recvlogical\); .*", line)
    finally:
        connection.close()


def test_a_slot_that_is_of_another_kind(site: Site) -> None:
    site.sql(f"SELECT pg_create_logical_replication_slot('{site.name}', 'test_decoding')")
    assert re.search(r"is not ours \(test_decoding, of database \w+\); set another \[source\] slot$", site.refused())


# What leads no further: a gap


def begins_anew(site: Site) -> None:
    """Does what the line says."""
    assert site.call("drop", "--slot", "--yes")[0] == 0
    site.log.rename(site.folder / "old")
    with site.running() as running:
        running.until(lambda: len(site.state("guest")) == site.sql("SELECT count(*) FROM guest")[0][0])


def test_a_slot_that_was_dropped(begun: Site) -> None:
    begun.sql(f"SELECT pg_drop_replication_slot('{begun.name}')", "INSERT INTO guest VALUES (2)")
    line = begun.refused()
    assert f"replication slot {begun.name} does not exist, and the changelog was begun with it" in line
    assert line.endswith(f"a new slot cannot reach back to what was published; {ANEW}")
    begins_anew(begun)


def test_a_slot_that_moved_on(begun: Site) -> None:
    begun.sql(
        "INSERT INTO guest VALUES (2)",
        f"SELECT pg_replication_slot_advance('{begun.name}', pg_current_wal_lsn())",
    )
    line = begun.refused()
    assert re.match(r"the slot has moved to \w+/\w+, beyond the changelog's \w+/\w+: what lies between is lost", line)
    assert line.endswith(ANEW)


def test_a_slot_that_lost_its_log(begun: Site) -> None:
    try:
        begun.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        for _ in range(3):
            begun.sql("CREATE TABLE filler ()", "DROP TABLE filler", "SELECT pg_switch_wal()")
        begun.sql("CHECKPOINT")
        line = begun.refused()
    finally:
        begun.sql("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    assert f"slot {begun.name} is lost: the server removed log that it had not sent" in line
    begins_anew(begun)


def test_another_cluster(begun: Site, spare: Server) -> None:
    spare.stop()
    spare.settings["wal_level"] = "logical"
    spare.start()
    with fresh_database(spare) as dsn:
        upgraded = Site(dsn, begun.folder)
        upgraded.sql(GUEST)
        begun.configure(ONE, dsn=dsn)
        line = begun.refused()
        assert "and the changelog was begun with it" not in line
        assert re.match(r"this is another database cluster \(\d+\) than the changelog's \(\d+\)", line)
        assert f"after an upgrade that lost nothing, `changelog run --accept-cluster`; else {ANEW}" in line
        with begun.running(accept_cluster=True) as running:
            running.until(lambda: running.said("streaming"))
            upgraded.sql("INSERT INTO guest VALUES (2)")
            running.until(lambda: len(begun.ops("guest")) == 2)
        with begun.running() as running:
            upgraded.sql("UPDATE guest SET name = 'Bo' WHERE id = 2")
            running.until(lambda: len(begun.ops("guest")) == 3)
        assert begun.call("drop", "--slot", "--yes")[0] == 0
    positions = [each["value"]["provenance"]["source"]["position"] for each in begun.messages()]
    assert [position[:8] for position in positions] == ["00000001", "00000002", "00000002"]


# What shapes the changelog


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ('key = ["name"]', "key, partition_by"),
        ("partitions = 4", "partitions"),
        ('mask = { email = "sha256" }\n[mask]\nkey = "sixteen letters at least"', "mask, mask_id"),
        ('exclude_columns = ["email"]', "exclude_columns"),
        ("immutable = true", "immutable"),
    ],
)
def test_a_changed_setting_is_refused_until_it_is_accepted(begun: Site, change: str, named: str) -> None:
    begun.sql("ALTER TABLE guest ALTER name SET NOT NULL", "CREATE UNIQUE INDEX ON guest (name)")
    begun.configure(ONE + change)
    assert begun.refused() == (
        f"the configuration no longer fits the changelog: entity guest has another {named}; put it back, "
        "or go on with `changelog run --accept-config`: older rows keep their old shape"
    )
    begun.sql("INSERT INTO guest VALUES (2, 'Bo', 'bo@example.org')")
    with begun.running(accept=True) as running:
        running.until(lambda: len(begun.ops("guest")) == 2)
    with begun.running() as running:
        begun.sql("INSERT INTO guest VALUES (3, 'Cy', 'cy@example.org')")
        running.until(lambda: len(begun.ops("guest")) == 3)


# What a policy will not publish

STAMP = """
SELECT pg_logical_emit_message(true, 'provenance', '{"apiVersion": "v1", "serviceName": "a", "identifier": "b"}')
"""


def stopped(site: Site, what: str) -> str:
    """The position at which the service stops, now and when it is started again."""
    first, second = site.refused(), site.refused()
    assert first == second
    assert what in first
    positions: set[str] = set(re.findall(r"\w{8}/\w{16}/\w{8}", first))
    [position] = positions
    return position


@pytest.mark.parametrize(("decision", "ops"), [("default", ["truncate"]), ("skip", []), ("dead-letter", [])])
def test_a_truncate_stops_and_is_passed(begun: Site, decision: str, ops: list[str]) -> None:
    begun.sql("INSERT INTO guest VALUES (2)", "TRUNCATE guest", "INSERT INTO guest VALUES (3)")
    position = stopped(begun, "public.guest was truncated")
    assert begun.ops("guest")[-1] == ("create", "2")
    assert begun.call("accept", position, "--as", decision)[0] == 0
    with begun.running() as running:
        running.until(lambda: begun.ops("guest")[-1] == ("create", "3"))
    assert [op for op, _ in begun.ops("guest")] == ["read", "create", *ops, "create"]
    assert len(begun.ops("dead")) == (decision == "dead-letter")
    assert "is past this position already" in begun.refused("accept", position, "--as", "skip", code=2)


@pytest.mark.parametrize("decision", ["skip", "dead-letter"])
def test_a_change_of_an_immutable_row_stops_and_is_passed(site: Site, decision: str) -> None:
    site.configure(ONE + "immutable = true")
    with site.running() as running:
        running.until(lambda: len(site.ops("guest")) == 1)
    site.sql("UPDATE guest SET name = 'x'", "INSERT INTO guest VALUES (2)")
    position = stopped(site, "a row of public.guest was changed, and entity guest is immutable")
    assert site.call("accept", position, "--as", decision)[0] == 0
    with site.running() as running:
        running.until(lambda: len(site.ops("guest")) == 2)
    assert site.ops("guest") == [("read", "1"), ("create", "2")]
    assert len(site.ops("dead")) == (decision == "dead-letter")


@pytest.mark.parametrize(("decision", "keys"), [("default", "123"), ("skip", "13"), ("dead-letter", "13")])
def test_a_missing_stamp_stops_and_is_passed(site: Site, decision: str, keys: str) -> None:
    site.configure(ONE + "[provenance]\nmissing = 'stop'")
    with site.running() as running:
        running.until(lambda: len(site.ops("guest")) == 1)
    site.sql("INSERT INTO guest VALUES (2)", f"BEGIN; {STAMP}; INSERT INTO guest VALUES (3); COMMIT")
    position = stopped(site, "a change of public.guest has no provenance stamp")
    assert site.call("accept", position, "--as", decision)[0] == 0
    with site.running() as running:
        running.until(lambda: site.ops("guest")[-1] == ("create", "3"))
    assert "".join(key for _, key in site.ops("guest")) == keys
    assert len(site.ops("dead")) == (decision == "dead-letter")


def test_stamps_that_are_none_are_counted_and_told_rarely(begun: Site) -> None:
    bad = "SELECT pg_logical_emit_message(true, 'provenance', 'nonsense')"
    with begun.running() as running:
        running.until(lambda: running.said("streaming"))
        for number in range(2, 12):
            begun.sql(f"BEGIN; {bad}; INSERT INTO guest VALUES ({number}); COMMIT")
        running.until(lambda: len(begun.ops("guest")) == 11)
        running.until(lambda: "changelog_stamps_invalid_total 10.0" in running.get("metrics"))
        assert sum(each["event"] == "provenance stamps ignored" for each in running.events()) == 1
    assert {each["value"]["provenance"]["serviceName"] for each in begun.messages()} == {"unknown"}


def test_a_position_that_is_none(begun: Site) -> None:
    code, lines = begun.call("accept", "soon", "--as", "skip")
    assert (code, len(lines)) == (2, 1)


# Signals, and a server that goes away


@contextlib.contextmanager
def _process(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "connectors", "run", "--config", str(site.config)]
    with (site.folder / "said").open("ab") as said:
        process = subprocess.Popen(command, stderr=said, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def _said(site: Site, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in (site.folder / "said").read_text():
        assert time.monotonic() < deadline, (site.folder / "said").read_text()
        time.sleep(0.02)


def test_a_service_that_is_told_to_stop_stores_all_that_was_committed(begun: Site) -> None:
    with _process(begun) as process:
        _said(begun, '"streaming"')
        begun.sql("INSERT INTO guest SELECT n, 'x' FROM generate_series(2, 20000) AS n", "INSERT INTO guest VALUES (0)")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert len(begun.state("guest")) == 20_001
    _said(begun, '"service stopped"')
    assert begun.sql("SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = current_database()") == []


def test_a_second_signal_stops_at_once(begun: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        begun.configure(ONE, dsn=f"host=127.0.0.1 port={deaf.getsockname()[1]} user=x dbname=x")
        with _process(begun) as process:
            _said(begun, '"service started"')
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(1) == service.STOPPED_AT_ONCE


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
    assert "Connection refused; is it running and reachable?" in lost["error"]
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

TAKE_SLOT = """
SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}';
SELECT pg_sleep(0.2);
SELECT pg_drop_replication_slot('{name}')
"""


@pytest.mark.parametrize(
    ("mishap", "kind", "said"),
    [
        ("DROP PUBLICATION {name}", Kind.GAP, "the publication is missing at this point of the log"),
        ("ALTER TABLE guest DROP id", Kind.PRECONDITION, "key column id is no longer in public.guest"),
        (TAKE_SLOT, Kind.GAP, "replication slot {name} does not exist"),
    ],
)
def test_what_is_taken_away_from_a_running_service(begun: Site, mishap: str, kind: Kind, said: str) -> None:
    with begun.running() as running:
        running.until(lambda: running.said("streaming"))
        begun.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: len(begun.ops("guest")) == 2)
        begun.sql(*mishap.format(name=begun.name).split(";"), "INSERT INTO guest VALUES (3)")
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
