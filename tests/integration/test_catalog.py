"""Tests how the service reads PostgreSQL's catalogue, and how it checks and creates publications and slots.

A *gap* is a span of the log whose changes are lost.
"""

import re
from collections.abc import Iterator

import psycopg
import pytest

from changelog.connectors.findings import refuse
from changelog.connectors.servers.postgres import temporary_server
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.check import Finding, Requirements, findings
from changelog.connectors.sources.postgres.admin.slot import ensure_publication, ensure_slot, slot_state
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.stream.replication import ReplicationConnection
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS as SESSION
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from changelog.envelope.position import commit_text
from tests.servers import SETTINGS

Connection = psycopg.Connection[tuple[object, ...]]

STAMP = Stamp(api_version="unknown", service_name="unknown", identifier="")


@pytest.fixture(params=["18", "15"])
def conn(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[Connection]:
    """A connection to a fresh database. Each test runs on PostgreSQL 18 and on PostgreSQL 15."""
    dsn = request.getfixturevalue("database" if request.param == "18" else "database_15")
    with connect(dsn, settings=SESSION) as connection:
        connection.execute("SET search_path = public")
        yield connection


@pytest.fixture
def replication(conn: Connection) -> Iterator[ReplicationConnection]:
    connection = ReplicationConnection.connect(conn.info.dsn)
    yield connection
    connection.close()


@pytest.fixture
def slot(conn: Connection) -> str:
    return f"slot_{conn.info.dbname}"


def tables(conn: Connection) -> dict[tuple[str, str], Table]:
    return {(table.schema, table.name): table for table in read_tables(conn, sized=lambda _: True)}


def create(conn: Connection, *statements: str) -> Table:
    """Runs statements that create a table `t`, and returns what the catalogue says about it."""
    for statement in statements:
        conn.execute(statement.encode())
    return tables(conn)["public", "t"]


def entity(name: str = "t", *, where: str | None = None, **names: tuple[str, ...]) -> Entity:
    key = names.get("key", ("id",))
    return Entity(
        name=name.lower(),
        table=("public", name),
        key=key,
        partition_by=names.get("partition_by", key),
        partitions=1,
        where=where,
        masks={},
        default_stamp=STAMP,
    )


def failures(conn: Connection, *entities: Entity) -> list[Finding]:
    """Returns the problems that `check` finds for these entities and the publication `p`."""
    requirements = Requirements(slot="none", publication="p", failover=False, entities=entities)
    return [finding for finding in findings(conn, requirements, read_tables(conn)) if finding.status == "fail"]


def test_the_columns_pages_and_index_of_a_plain_table_are_read(conn: Connection) -> None:
    t = create(
        conn,
        "CREATE TABLE t (a int, gone int, id bigint PRIMARY KEY, n numeric(10, 2) NOT NULL,"
        " g int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE t DROP COLUMN gone",
        "INSERT INTO t SELECT g, g, g FROM generate_series(1, 1000) AS g",
        "ANALYZE t",
    )
    is_postgres_18 = conn.info.server_version >= 180000
    assert [(c.name, c.type_oid, c.not_null, c.generated, c.published) for c in t.columns] == [
        ("a", 23, False, None, True),
        ("id", 20, True, None, True),
        ("n", 1700, True, None, True),
        ("g", 23, False, "stored", is_postgres_18),
    ]
    assert t.columns[2].typmod == (10 << 16 | 2) + 4
    assert (t.kind, t.replica_identity, t.rows_estimate) == ("r", "d", 1000)
    [leaf] = t.leaves
    assert (leaf.oid, leaf.name, leaf.identity) == (t.oid, "t", ("id",))
    assert leaf.pages * 8192 <= t.nbytes
    assert leaf.pages > 1
    [index] = t.indexes
    assert (index.columns, index.primary, index.unique, index.immediate) == (("id",), True, True, True)
    conn.execute("VACUUM FULL t")
    assert tables(conn)["public", "t"].leaves[0].filenode != leaf.filenode


def test_reading_the_catalogue_waits_for_locks_only_on_tables_whose_size_is_read(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE TABLE locked (id int)")
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        conn.execute("SET lock_timeout = '50ms'")
        by_name = {table.name: table for table in read_tables(conn, sized=lambda name: name == ("public", "t"))}
        assert by_name["t"].nbytes >= by_name["t"].leaves[0].pages * 8192 > 0
        assert (by_name["locked"].nbytes, by_name["locked"].leaves[0].pages) == (0, 0)
        assert by_name["locked"].leaves[0].filenode
        with pytest.raises(ChangelogError, match="lock timeout"):
            tables(conn)


def test_a_virtual_column_is_never_published(conn: Connection) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    t = create(conn, "CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) VIRTUAL)")
    assert (t.columns[1].generated, t.columns[1].published) == ("virtual", False)


def test_a_not_null_constraint_that_is_not_validated_does_not_count(conn: Connection) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("NOT NULL … NOT VALID came with PostgreSQL 18")
    t = create(conn, "CREATE TABLE t (id int UNIQUE)", "ALTER TABLE t ADD CONSTRAINT n NOT NULL id NOT VALID")
    assert t.columns[0].not_null is False


def test_partitions_of_partitions_are_read_as_leaves(conn: Connection) -> None:
    t = create(
        conn,
        "CREATE TABLE t (id int, day date, PRIMARY KEY (day, id)) PARTITION BY RANGE (day)",
        "CREATE TABLE t_2025 PARTITION OF t FOR VALUES FROM ('2025-01-01') TO ('2026-01-01')",
        "CREATE TABLE t_2026 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2027-01-01') PARTITION BY HASH (id)",
        "CREATE TABLE t_2026_0 PARTITION OF t_2026 FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        "ALTER TABLE t_2025 REPLICA IDENTITY FULL",
        "CREATE TABLE empty (id int) PARTITION BY HASH (id)",
    )
    assert t.kind == "p"
    assert [(leaf.name, leaf.identity) for leaf in t.leaves] == [
        ("t_2025", None),
        ("t_2026_0", ("id", "day")),
    ]
    assert t.key_problem(("id", "day")) is None
    assert [(name, len(table.leaves)) for (_, name), table in tables(conn).items()] == [("empty", 0), ("t", 2)]


def test_names_with_any_characters_are_read(conn: Connection) -> None:
    conn.execute('CREATE SCHEMA "Büro"')
    conn.execute("""CREATE TABLE "Büro"."tab.le ""x'" ("Größe %s" int PRIMARY KEY)""")
    conn.execute("""CREATE TABLE "tab.le ""x'" (id int)""")
    conn.execute("CREATE TEMPORARY TABLE passing (id int)")
    by_name = tables(conn)
    assert list(by_name) == [("Büro", "tab.le \"x'"), ("public", "tab.le \"x'")]
    assert by_name["Büro", "tab.le \"x'"].indexes[0].columns == ("Größe %s",)


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("id int PRIMARY KEY", None),
        ("id int NOT NULL, UNIQUE (id)", None),
        ("id int", "column id of the table public.t may be null"),
        ("id int UNIQUE", "column id of the table public.t may be null"),
        ("id int NOT NULL", r"public.t has no unique index on \(id\)"),
        ("id int NOT NULL, b int NOT NULL, UNIQUE (id, b)", "no unique index"),
        ("id int PRIMARY KEY DEFERRABLE", "index t_pkey of the table public.t is deferrable"),
        ("other int PRIMARY KEY", "has no column id"),
        ("id int PRIMARY KEY DEFERRABLE, CONSTRAINT u UNIQUE (id)", None),
    ],
)
def test_which_unique_index_can_be_an_entity_key(conn: Connection, definition: str, problem: str | None) -> None:
    key_problem = create(conn, f"CREATE TABLE t ({definition})").key_problem(("id",))
    if problem is None:
        assert key_problem is None
    else:
        assert key_problem is not None
        assert re.search(problem, key_problem)


def test_indexes_that_cannot_be_an_entity_key(conn: Connection) -> None:
    t = create(
        conn,
        "CREATE TABLE t (id int NOT NULL, x text NOT NULL)",
        "CREATE UNIQUE INDEX partly ON t (id) WHERE id > 0",
        "CREATE UNIQUE INDEX lowered ON t (lower(x))",
        "CREATE UNIQUE INDEX wide ON t (x) INCLUDE (id)",
    )
    assert t.key_problem(("id",)) == "the unique index partly of the table public.t is partial; create another on (id)"
    assert t.key_problem(("x",)) is None
    assert [index.name for index in t.indexes] == ["partly", "wide"]
    conn.execute("INSERT INTO t VALUES (-1, 'a'), (-1, 'b')")
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON t (id)")
    conn.execute("DROP INDEX partly")
    assert "broken of the table public.t is not valid" in str(tables(conn)["public", "t"].key_problem(("id",)))


def test_generated_columns_can_be_a_key_since_postgresql_18(conn: Connection) -> None:
    t = create(conn, "CREATE TABLE t (a int, id int GENERATED ALWAYS AS (a) STORED NOT NULL, PRIMARY KEY (id))")
    assert (t.key_problem(("id",)) is None) == (conn.info.server_version >= 180000)


def test_the_publication_is_created_once(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, b int, g int GENERATED ALWAYS AS (b) STORED)")
    conn.execute("CREATE TABLE child () INHERITS (t)")
    conn.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY HASH (id)")
    conn.execute("CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    entities = [entity(where="id > 0"), entity("parted")]
    for _ in range(2):
        ensure_publication(conn, "a b", entities)
    published = conn.execute("SELECT tablename FROM pg_publication_tables ORDER BY 1").fetchall()
    assert published == [("parted",), ("t",)]
    conn.execute("INSERT INTO t (id, b) VALUES (1, 1)")
    conn.execute("UPDATE t SET b = 2")
    conn.execute("DELETE FROM t")


@pytest.mark.parametrize(
    ("creation", "problem"),
    [
        ("FOR TABLE other", "publication p lacks table public.t"),
        ("FOR TABLE t WITH (publish = 'insert')", "publication p leaves out some kinds of change"),
        ("FOR TABLE t (id)", "column list on table public.t"),
        ("FOR TABLE t WHERE (id > 0)", "disagree on the row filter of table public.t"),
    ],
)
def test_a_publication_that_lacks_something_is_refused(conn: Connection, creation: str, problem: str) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
    conn.execute("CREATE TABLE other (id int PRIMARY KEY)")
    conn.execute(f"CREATE PUBLICATION p {creation}".encode())
    with pytest.raises(ChangelogError, match="publication p publishes partitions under their own names") as raised:
        refuse(failures(conn, entity()))
    assert raised.value.kind is Kind.PRECONDITION
    conn.execute("ALTER PUBLICATION p SET (publish_via_partition_root = true)")
    with pytest.raises(ChangelogError, match=problem) as raised:
        refuse(failures(conn, entity()))
    assert raised.value.kind is Kind.PRECONDITION
    before = conn.execute("SELECT p FROM pg_publication AS p").fetchall()
    ensure_publication(conn, "p", [entity()])
    assert conn.execute("SELECT p FROM pg_publication AS p").fetchall() == before


def test_after_the_fixes_of_check_a_publication_equals_a_new_one(conn: Connection) -> None:
    conn.execute("CREATE TABLE other (id int PRIMARY KEY)")
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")
    conn.execute("CREATE TABLE child () INHERITS (t)")
    conn.execute("CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY HASH (id)")
    conn.execute("CREATE TABLE parted_0 PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    conn.execute("CREATE PUBLICATION p FOR TABLE other, parted WITH (publish = 'insert')")
    entities = [entity(where="id > 0"), entity("parted")]
    for finding in failures(conn, *entities):
        for statement in finding.fix:
            conn.execute(statement.encode())
    assert failures(conn, *entities) == []
    conn.execute("ALTER PUBLICATION p DROP TABLE other")
    ensure_publication(conn, "new", entities)
    publications = {
        name: (
            conn.execute(
                "SELECT to_jsonb(p) - '{oid,pubname}'::text[] FROM pg_publication AS p WHERE pubname = %s", [name]
            ),
            conn.execute(
                "SELECT tablename, rowfilter FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", [name]
            ),
        )
        for name in ("p", "new")
    }
    assert [cursor.fetchall() for cursor in publications["p"]] == [cursor.fetchall() for cursor in publications["new"]]


def test_a_publication_for_all_tables_is_accepted(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    conn.execute("CREATE PUBLICATION p FOR ALL TABLES WITH (publish_via_partition_root = true)")
    assert failures(conn, entity()) == []


def test_a_publication_that_leaves_out_generated_columns_is_a_problem_since_postgresql_18(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")
    conn.execute("CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root)")
    messages = [finding.message for finding in failures(conn, entity())]
    can_be_published = conn.info.server_version >= 180000
    assert messages == (["publication p leaves out the generated columns of public.t"] if can_be_published else [])


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("status IN ('a', 'b') and x > 1.5 AND NOT done", None),
        (
            "(x > 1.50::numeric AND (status = 'a' OR status = 'b')) AND NOT done",
            "disagree on the row filter of table public.t",
        ),
        ("status IN ('a', 'c') AND x > 1.5 AND NOT done", "disagree on the row filter of table public.t"),
        ("true), (true", "disagree on the row filter of table public.t"),
        ("stat = 'a'", 'comparing .* with the row filter of table public.t: column "stat" does not exist'),
        ("status = ", "comparing .* with the row filter of table public.t: syntax error"),
    ],
)
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_row_filter_is_compared_as_the_server_reads_it(
    conn: Connection, where: str, problem: str | None, partitioned: bool
) -> None:
    partitioning = "PARTITION BY HASH (id)" if partitioned else ""
    conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, status text, x numeric, done bool) {partitioning}".encode())
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    row_filter = "status IN ('a', 'b') AND x > 1.5 AND NOT done"
    conn.execute(f"CREATE PUBLICATION p FOR TABLE t WHERE ({row_filter}) WITH (publish_via_partition_root)".encode())
    problems = failures(conn, entity(where=where))
    if problem is None:
        assert problems == []
    else:
        [finding] = problems
        assert re.search(problem, finding.message)
        assert finding.hint is not None
        assert "set the same filter in both places" in finding.hint


def test_the_server_says_which_columns_a_row_filter_uses(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, status text, draft bool)")
    conn.execute("CREATE PUBLICATION p FOR TABLE t WHERE (status <> 'draft') WITH (publish_via_partition_root)")
    [finding] = failures(conn, entity(where="status <> 'draft'"))
    assert finding.message.startswith(
        "the publication's row filter uses status, outside the replica identity of public.t"
    )
    assert finding.fix == ('ALTER TABLE "public"."t" REPLICA IDENTITY FULL',)


def test_a_publication_that_would_break_the_applications_own_changes_is_not_created(
    conn: Connection, slot: str
) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, status text)")
    conn.execute("CREATE TABLE bare (id int NOT NULL UNIQUE)")
    source_settings = Settings(name="n", dsn=conn.info.dsn, slot=slot, publication="p", failover=False, hmac_key=b"")
    for unusable, problem in (
        (entity(where="status <> 'draft'"), "setting `where` uses status, outside the replica identity of public.t"),
        (entity("bare"), "replica identity of public.bare lacks id"),
        (entity(partition_by=("status",)), "replica identity of public.t lacks status"),
        (entity("absent"), "no table public.absent"),
    ):
        with pytest.raises(ChangelogError, match=problem) as raised:
            PostgresSource(source_settings, [unusable], lambda: None)
        assert raised.value.kind is Kind.PRECONDITION
        assert conn.execute("SELECT FROM pg_publication").fetchone() is None
        assert slot_state(conn, slot) is None
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    PostgresSource(source_settings, [entity(where="status <> 'draft'")], lambda: None).close()
    assert slot_state(conn, slot) is not None
    conn.execute("INSERT INTO t VALUES (1, 'new')")
    conn.execute("UPDATE t SET status = 'draft'")


def test_no_fix_breaks_the_updates_of_a_table_with_a_virtual_column(conn: Connection) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int, g int GENERATED ALWAYS AS (x) VIRTUAL)")
    [finding] = failures(conn, entity(where="x > 0"))
    assert (finding.hint, finding.fix) == (
        "REPLICA IDENTITY FULL does not work for tables with virtual generated columns",
        (),
    )
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    [finding] = failures(conn, entity())
    assert "the application's own UPDATE and DELETE would fail; use DEFAULT" in finding.message


def test_a_role_that_may_not_create_the_publication_is_refused(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    role = f"role_{conn.info.dbname}"
    conn.execute(f"CREATE ROLE {role}".encode())
    try:
        conn.execute(f"SET ROLE {role}".encode())
        with pytest.raises(ChangelogError, match="permission denied") as raised:
            ensure_publication(conn, "p", [entity()])
        assert raised.value.kind is Kind.ACCESS
    finally:
        conn.execute("RESET ROLE")
        conn.execute(f"DROP ROLE {role}".encode())


def test_the_slot_is_created_once(conn: Connection, replication: ReplicationConnection, slot: str) -> None:
    assert slot_state(conn, slot) is None
    state = ensure_slot(conn, replication, slot, None, failover=conn.info.server_version >= 170000)
    assert (state.plugin, state.database, state.active_pid) == ("pgoutput", conn.info.dbname, None)
    assert state.failover == (conn.info.server_version >= 170000)
    assert state.confirmed_flush > 0
    assert state.wal_status == "reserved"
    assert state.retained_bytes is not None
    assert ensure_slot(conn, replication, slot, None, failover=False).confirmed_flush == state.confirmed_flush


def test_a_slot_that_is_missing_although_a_changelog_exists_is_a_gap(
    conn: Connection, replication: ReplicationConnection, slot: str
) -> None:
    checkpoint = Checkpoint(position=None, through=commit_text(1), epoch=1)
    with pytest.raises(ChangelogError, match="no longer exists") as raised:
        ensure_slot(conn, replication, slot, checkpoint, failover=False)
    assert raised.value.kind is Kind.GAP
    assert slot_state(conn, slot) is None


def test_a_slot_that_is_not_a_plain_pgoutput_slot_is_refused(
    conn: Connection, replication: ReplicationConnection, slot: str
) -> None:
    for creation in (
        "pg_create_logical_replication_slot(%s, 'test_decoding')",
        "pg_create_logical_replication_slot(%s, 'pgoutput', false, true)",
        "pg_create_physical_replication_slot(%s)",
    ):
        conn.execute(f"SELECT {creation}".encode(), [slot])
        with pytest.raises(ChangelogError, match="is not ours") as raised:
            ensure_slot(conn, replication, slot, None, failover=False)
        assert raised.value.kind is Kind.PRECONDITION
        conn.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def test_an_invalid_slot_name_is_refused(conn: Connection, replication: ReplicationConnection) -> None:
    with pytest.raises(ChangelogError, match="invalid character") as raised:
        ensure_slot(conn, replication, "No slot", None, failover=False)
    assert raised.value.kind is Kind.PRECONDITION


@pytest.mark.usefixtures("starts_servers")
def test_a_server_without_a_free_slot_is_refused() -> None:
    with temporary_server(settings={**SETTINGS, "max_replication_slots": "1"}) as server, connect(server.dsn()) as conn:
        replication = ReplicationConnection.connect(server.dsn())
        ensure_slot(conn, replication, "first", None, failover=False)
        with pytest.raises(ChangelogError, match="slots are in use") as raised:
            ensure_slot(conn, replication, "second", None, failover=False)
        replication.close()
        assert raised.value.kind is Kind.PRECONDITION
        assert "max_replication_slots" in str(raised.value)
