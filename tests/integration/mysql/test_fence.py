"""Tests fences of MySQL and MariaDB while threads write to the tables, and cases in which no fence can be taken.

A fence is a snapshot of the database, together with the set of transactions that the snapshot sees. A comparison of
tables with the changelog reads both as they were at a fence. These tests assume that the changelog is right: the
messages of the transactions that a fence sees must result in the rows that the fence reads from the table.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from changelog.connectors import config
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sinks.files.log import read_log
from changelog.connectors.sources import Database
from changelog.connectors.sources.fences import Fence, NoFenceError, Pages
from changelog.connectors.sources.mysql.scan import GROUP_PAGES
from changelog.connectors.wiring.sources import database, read_entities
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text
from tests.campaigns._mysql.accounts import TABLE, WRITERS, writing
from tests.integration.mysql.site import MysqlSite
from tests.patience import PATIENCE_S

ROUNDS = 4

ACCOUNT = """
[entities.account]
table = "{database}.account"
"""


@pytest.fixture
def site(mysql_server: MysqlServer, mysql_database: str, tmp_path: Path) -> MysqlSite:
    site = MysqlSite(mysql_server, mysql_database, tmp_path)
    site.sql(
        *TABLE,
        "CREATE TABLE changelog_signal (id BIGINT PRIMARY KEY, content MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL)",
    )
    site.configure(ACCOUNT.format(database=mysql_database))
    return site


def source(site: MysqlSite) -> tuple[Database, Sequence[Entity]]:
    """Returns the database of the site's configuration, and the entities."""
    settings = config.load(site.config, {})
    opened = database(settings)
    return opened, read_entities(settings, opened)


def is_published(site: MysqlSite, fence: Fence) -> bool:
    """Returns whether the changelog has everything that the fence sees."""
    return fence.missing(site.checkpoint) is None


def read(fence: Fence, entity: str) -> dict[str, Any]:
    """Returns the rows that an entity's table has at the fence, by key."""
    pages = Pages(entity=entity, leaf=0, first=0, end=None)
    return {
        row["key"]: msgspec.json.decode(row["current"])
        for batch in fence.scan.rows([pages], None)
        for row in batch.to_pylist()
    }


def rows_before(site: MysqlSite, ends: Sequence[int]) -> Iterator[dict[str, Any]]:
    """For each commit in `ends`, yields the rows that `account` has after all messages of earlier commits. `ends` must
    be sorted.
    """
    messages = [(Position.parse(text).commit, key, current) for text, key, current in rows_of(site)]
    rows: dict[str, Any] = {}
    count = 0
    for end in ends:
        while count < len(messages) and messages[count][0] < end:
            _, key, current = messages[count]
            rows.pop(key, None)
            if current is not None:
                rows[key] = msgspec.json.decode(current)
            count += 1
        yield dict(rows)


def rows_of(site: MysqlSite) -> Iterator[tuple[str, str, str | None]]:
    """Yields the position, the key and the current row of each message of `account`, in order."""
    for batch in read_log(site.log, entity="account"):
        columns = (batch.column(name).to_pylist() for name in ("position", "key", "current"))
        yield from zip(*columns, strict=True)


@pytest.mark.parametrize("xa", [0.0, 0.2])
def test_a_fence_reads_exactly_the_transactions_that_it_shows(site: MysqlSite, seed: int, xa: float) -> None:
    opened, entities = source(site)
    fences: list[tuple[int, dict[str, Any]]] = []
    with site.running() as service:
        service.until(site.is_read)
        with writing(site.server, site.database, seed, xa=xa) as writers:
            for _ in range(ROUNDS):
                with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
                    fences.append((fence.shown.end, read(fence, "account")))
                    service.until(partial(is_published, site, fence))
        service.until(lambda: int(site.checkpoint.through, 16) >= fences[-1][0])
    assert all(writer.transactions for writer in writers)
    ends = [end for end, _ in fences]
    wrong = [end for (end, rows), expected in zip(fences, rows_before(site, ends), strict=True) if rows != expected]
    assert not wrong
    assert len(set(ends)) == ROUNDS


def test_a_fence_belongs_to_one_server_and_its_present_log(site: MysqlSite) -> None:
    opened, entities = source(site)
    with site.running() as service:
        service.until(site.is_read)
        with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
            service.until(lambda: is_published(site, fence))
            checkpoint = site.checkpoint
            assert fence.is_of(checkpoint)
            assert not fence.is_of(replace(checkpoint, source={**checkpoint.source, "server": "another"}))
            reason = fence.missing(replace(checkpoint, through=commit_text(fence.shown.end - 1)))
            assert reason is not None
            assert reason.startswith("it reaches ")
            reset_reason = fence.missing(replace(checkpoint, through=commit_text(fence.shown.end + (1 << 40))))
            assert reset_reason is not None
            assert "the server's log ends at" in reset_reason


def test_the_copies_of_the_tables_are_deleted_at_the_end_of_the_fence(site: MysqlSite, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    settings = config.load(site.config, {"CHANGELOG__SOURCE__FENCE_FOLDER": str(folder)})
    opened = database(settings)
    with opened.fence(read_entities(settings, opened), deadline=time.monotonic() + PATIENCE_S) as fence:
        [copies] = folder.iterdir()
        assert copies.stat().st_mode & 0o077 == 0
        assert len(read(fence, "account")) == WRITERS + 1
    assert list(folder.iterdir()) == []
    with pytest.raises(ChangelogError) as raised:
        read(fence, "account")
    assert raised.value.kind is Kind.CONNECTION


def test_a_table_has_no_fence_until_it_is_unlocked(site: MysqlSite) -> None:
    opened, entities = source(site)
    with site.server.connect(site.database) as session, session.cursor() as cursor:
        cursor.execute("LOCK TABLES account WRITE")
        with pytest.raises(NoFenceError) as raised, opened.fence(entities, deadline=time.monotonic()):
            pass
        assert raised.value.later
        cursor.execute("UNLOCK TABLES")
    with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
        assert len(read(fence, "account")) == WRITERS + 1


def test_the_account_needs_reload_only_where_writers_must_be_stopped(site: MysqlSite) -> None:
    name = site.database
    site.sql(
        f"CREATE USER {name}@'%'",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {name}@'%'",
        f"GRANT SELECT ON {name}.account TO {name}@'%'",
    )
    site.configure(ACCOUNT.format(database=name), dsn=site.url(name))
    opened, entities = source(site)
    with ExitStack() as xa:
        if site.server.flavour == "mariadb":
            with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
                assert len(read(fence, "account")) == WRITERS + 1
            site.sql(
                f"XA START '{name}'", "INSERT INTO account VALUES (1, 1)", f"XA END '{name}'", f"XA PREPARE '{name}'"
            )
            xa.callback(site.sql, f"XA ROLLBACK '{name}'")
        with pytest.raises(NoFenceError) as raised, opened.fence(entities, deadline=time.monotonic()):
            pass
        assert not raised.value.later
        assert "GRANT RELOAD" in str(raised.value.hint)
        site.sql(f"GRANT RELOAD ON *.* TO {name}@'%'")
        with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
            assert len(read(fence, "account")) == WRITERS + 1
    site.sql(f"DROP USER {name}@'%'")


def test_a_large_table_is_copied_in_several_portions(site: MysqlSite) -> None:
    numbers = "WITH RECURSIVE n AS (SELECT 0 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 299)"
    site.sql(f"REPLACE INTO account {numbers} SELECT a.n * 300 + b.n, a.n FROM n AS a, n AS b")
    opened, entities = source(site)
    with opened.fence(entities, deadline=time.monotonic() + PATIENCE_S) as fence:
        assert fence.tables["account"].leaf_pages[0] > GROUP_PAGES
        assert read(fence, "account") == site.rows("account")
