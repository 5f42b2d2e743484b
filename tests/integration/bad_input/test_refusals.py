"""Tests that the service refuses to start if something is wrong with the database, the configuration, the folder of the
changelog, or the replication slot.
"""

import contextlib
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from changelog.connectors.servers.postgres import PostgresServer
from changelog.connectors.sources.postgres import watch
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.envelope.errors import Kind
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.servers import SETTINGS, fresh_database, reload

SECRET = "opensesame"


# The database


def test_a_wrong_password_is_refused_and_not_printed(site: Site, server: PostgresServer) -> None:
    rules = server.data_dir / "pg_hba.conf"
    original_rules = rules.read_text()
    site.sql("DROP ROLE IF EXISTS locked", "CREATE ROLE locked LOGIN PASSWORD 'right'")
    try:
        rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + original_rules)
        reload(site.dsn)
        site.configure(ONE, dsn=make_conninfo(site.dsn, user="locked", password=SECRET))
        for command in ("run", "check", "status", "drop"):
            line = site.refused(command)
            assert 'password authentication failed for user "locked"; check user and password in [source] dsn' in line
            assert SECRET not in line
    finally:
        rules.write_text(original_rules)
        reload(site.dsn)
        site.sql("DROP ROLE locked")


def test_a_server_without_logical_decoding_is_refused(other_cluster: PostgresServer, tmp_path: Path) -> None:
    with fresh_database(other_cluster) as dsn:
        site = Site(dsn, tmp_path)
        site.sql(GUEST)
        site.configure(ONE)
        assert site.refused() == (
            "wal_level: wal_level is replica; ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        )
        assert site.sql("SELECT 1 FROM pg_publication") == []


def test_a_standby_is_refused(site: Site, server: PostgresServer) -> None:
    folder = server.data_dir.parent / "standby"
    server.run("pg_basebackup", "--dbname", server.dsn(), "--pgdata", str(folder), "-R", "-X", "stream", "-c", "fast")
    with PostgresServer(server.bin_dir, folder, settings={**SETTINGS, "hot_standby": "on"}) as standby:
        site.configure(ONE, dsn=standby.dsn(site.name))
        line = site.refused()
    assert line == "primary: the server is a standby; connect to the primary: the service also writes into its log"


def test_a_database_without_a_text_encoding_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE bytes ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            site = Site(server.dsn("bytes"), tmp_path)
            site.sql(GUEST)
            site.configure(ONE)
            assert (
                "the database's encoding is SQL_ASCII, so its text may be in any encoding; move the" in site.refused()
            )
        finally:
            admin.execute("DROP DATABASE bytes WITH (FORCE)")


def test_another_database_of_the_same_cluster_is_refused(site: Site, server: PostgresServer, tmp_path: Path) -> None:
    with fresh_database(server) as dsn:
        other = Site(dsn, tmp_path / "other")
        other.sql(
            GUEST,
            "INSERT INTO guest VALUES (7, 'Eve', 'eve@example.org')",
            f"CREATE PUBLICATION {site.name} FOR TABLE guest "
            "WITH (publish_via_partition_root = true, publish_generated_columns = stored)",
            f"SELECT pg_create_logical_replication_slot('{other.name}', 'pgoutput')",
        )
        with site.running() as running:
            running.until(lambda: site.state("guest").keys() == {"1"})
        [(oid, other_oid)] = site.sql(
            f"SELECT a.oid, b.oid FROM pg_database a, pg_database b WHERE (a.datname, b.datname) = "
            f"('{site.name}', '{other.name}')"
        )
        site.configure(ONE, dsn=dsn)
        assert site.refused().endswith(
            f"(pgoutput, of database {site.name}); connect to database {site.name} ([source] dsn), "
            "or set another [source] slot"
        )
        site.config.write_text(site.config.read_text().replace('"postgres",', f'"postgres", slot = "{other.name}",'))
        assert site.refused().startswith(
            f"this is database {other.name} (oid {other_oid}), but the changelog comes from {site.name} (oid {oid}) "
            f"of the same cluster; connect to {site.name} ([source] dsn); if it no longer exists, "
            "`changelog run --over-gap`"
        )
        other.sql(f"SELECT pg_drop_replication_slot('{other.name}')")
    assert site.state("guest").keys() == {"1"}


def test_the_service_continues_after_its_database_was_renamed(stopped_site: Site, server: PostgresServer) -> None:
    renamed = f"{stopped_site.name}_renamed"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {stopped_site.name} RENAME TO {renamed}".encode())
        try:
            stopped_site.configure(ONE, dsn=server.dsn(renamed))
            with stopped_site.running() as running:
                running.until(lambda: stopped_site.checkpoint.source["database"]["name"] == renamed)
        finally:
            admin.execute(f"ALTER DATABASE {renamed} RENAME TO {stopped_site.name}".encode())


# The configuration


def test_all_problems_of_a_malformed_configuration_are_reported_together(site: Site) -> None:
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
    assert "no such file; write a configuration with `changelog init" in site.refused(code=2)


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


def test_tables_that_cannot_be_published_are_refused(site: Site) -> None:
    site.sql(TABLES)
    site.configure(KEYLESS)
    code, lines = site.call("run")
    assert code == 2
    assert lines == [
        "changelog: configuration: 5 problems",
        "  entities.absent.table: the database has no table public.gusets; create it, or correct the name",
        '  entities.bare: the table public.bare has no primary key; add key = ["COLUMN"], or exclude the table',
        (
            "  entities.late.key: the unique index late_pkey of the table public.late is deferrable; "
            "create another on (id)"
        ),
        "  entities.part.key: the unique index part_id of the table public.part is partial; create another on (id)",
        "  entities.soft.key: column id of the table public.soft may be null; make it NOT NULL",
    ]
    site.configure('[entities.absent]\ntable = "public.gusets"\n')
    assert site.refused(code=2).startswith("configuration: entities.absent.table: the database has no table")


def test_a_publication_that_lacks_a_table_is_refused_until_it_is_repaired(site: Site) -> None:
    site.sql("CREATE TABLE other (id int PRIMARY KEY)", f"CREATE PUBLICATION {site.name} FOR TABLE other")
    line = site.refused()
    assert f"{site.name} publishes partitions under their own names (and 1 more problem: see `changelog check`)" in line
    site.sql(f"ALTER PUBLICATION {site.name} SET (publish_via_partition_root = true)")
    assert (
        f'publication {site.name} lacks table public.guest; ALTER PUBLICATION "{site.name}" ADD TABLE' in site.refused()
    )
    assert site.call("check", "--fix")[0] == 0
    with site.running() as running:
        running.until(lambda: site.state("guest").keys() == {"1"})


def test_a_publication_that_no_longer_has_all_changes_stops_the_service(
    stopped_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running service notices the changed publication the next time that it reads the catalogue. A stopped service
    notices it at its next start.
    """
    monkeypatch.setattr(watch, "READ_INTERVAL_S", 0.1)
    missing_changes = "no longer has all changes of the table public.guest: changes after log position "
    with stopped_site.running() as running:
        stopped_site.sql("INSERT INTO guest VALUES (2)")
        running.until(lambda: "2" in stopped_site.state("guest"))
        stopped_site.sql(f"ALTER PUBLICATION {stopped_site.name} SET (publish = 'insert')")
        error = running.ended()
    assert error.kind is Kind.GAP
    assert "leaves out some kinds of change: changes after log position " in str(error)
    assert missing_changes in stopped_site.refused()
    stopped_site.sql(f"DROP PUBLICATION {stopped_site.name}")
    refusal = f"publication {stopped_site.name} no longer exists, although the changelog was begun with it"
    assert refusal in stopped_site.refused()


def test_a_publication_with_a_column_list_is_refused(site: Site) -> None:
    site.sql(f"CREATE PUBLICATION {site.name} FOR TABLE guest (id) WITH (publish_via_partition_root = true)")
    line = site.refused()
    assert (
        f"publication {site.name} has a column list on table public.guest; remove the list and use [entities.X]" in line
    )


# The folder of the changelog


def test_a_folder_that_cannot_be_written_is_refused(site: Site) -> None:
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
        assert line.startswith(f"cannot store in {site.log}: File too large; free space, then start again: nothing is")
    site.sql("UPDATE guest SET name = 'new' WHERE id <= 100", "DELETE FROM guest WHERE id = 7")
    with site.running() as running:
        running.until(lambda: len(site.state("guest")) == 4999 and ("delete", "7") in site.ops("guest"))
    names = [name for (name,) in site.sql("SELECT name FROM guest ORDER BY id")]
    assert [row["name"] for _, row in sorted(site.state("guest").items(), key=lambda item: int(item[0]))] == names
    positions = [message["value"]["provenance"]["source"]["position"] for message in site.messages()]
    assert len(positions) == len(set(positions))
    assert positions == sorted(positions)


@contextlib.contextmanager
def _files_of_at_most(nbytes: int) -> Iterator[None]:
    """Inside the `with` block, no file of this process can grow beyond `nbytes`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# The slot


@pytest.mark.usefixtures("little_patience")
def test_a_second_service_of_the_same_name_is_refused(stopped_site: Site) -> None:
    active_slot = f"SELECT 1 FROM pg_replication_slots WHERE active AND slot_name = '{stopped_site.name}'"
    with stopped_site.running() as running:
        running.until(lambda: bool(stopped_site.sql(active_slot)))
        stopped_site.configure(ONE, path="other")
        assert re.fullmatch(
            rf"replication slot {stopped_site.name} is read by process (\d+) \(changelog, role \w+, .*, since .*\); "
            r"stop that process first, or, if nobody needs the process any more, end it with "
            r"SELECT pg_terminate_backend\(\1\)",
            stopped_site.refused(),
        )
        assert "(changelog, role " in stopped_site.refused("drop", "--slot", "--yes")


def test_locks_of_another_role_do_not_stop_the_service(stopped_site: Site) -> None:
    """Any role can take any advisory lock, even the one by which older versions of the service reserved the slot."""
    stopped_site.sql(f"CREATE ROLE {stopped_site.name} LOGIN")
    try:
        with psycopg.connect(stopped_site.dsn, user=stopped_site.name, autocommit=True) as stranger:
            stranger.execute(
                "SELECT pg_advisory_lock(hashtextextended('changelog slot ' || %s, 0))", [stopped_site.name]
            )
            with stopped_site.running() as running:
                stopped_site.sql("INSERT INTO guest VALUES (2)")
                running.until(lambda: "2" in stopped_site.state("guest"))
    finally:
        stopped_site.sql(f"DROP ROLE {stopped_site.name}")


@pytest.mark.usefixtures("little_patience")
def test_a_slot_that_another_program_reads_is_refused(stopped_site: Site) -> None:
    connection = ReplicationConnection.connect(make_conninfo(stopped_site.dsn, application_name="pg_recvlogical"))
    connection.start(stopped_site.name, 0, {"proto_version": "1", "publication_names": stopped_site.name})
    try:
        line = stopped_site.refused()
        assert re.fullmatch(rf"replication slot {stopped_site.name} is read by process \d+ \(pg_recvlogical, .*", line)
    finally:
        connection.close()


def test_a_slot_of_another_kind_is_refused(site: Site) -> None:
    site.sql(f"SELECT pg_create_logical_replication_slot('{site.name}', 'test_decoding')")
    assert re.search(r"is not ours \(test_decoding, of database \w+\); set another \[source\] slot$", site.refused())
