"""Tests tables that are added to an existing changelog, for the first time or again."""

from pathlib import Path

import psycopg
import pytest

from tests.integration.site import Site

EARLY = '[entities.early]\ntable = "public.early"\n'
LATE = '[entities.late]\ntable = "public.late"\n'
TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, v int); ALTER TABLE {0} REPLICA IDENTITY FULL"


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    return Site(database, tmp_path)


def test_rows_written_before_their_table_was_added_come_from_the_snapshot(site: Site) -> None:
    """One transaction changes a table both before and after the publication gets the table. The stream has only the
    changes after that.

    The service reads the table only after the transaction has ended. So the rows that it reads include all changes.
    """
    site.sql(TABLE.format("early"), TABLE.format("late"))
    site.sql("INSERT INTO early VALUES (1, 0)", "INSERT INTO late VALUES (1, 0), (2, 0), (3, 0)")
    site.configure(EARLY)
    with site.running() as service:
        service.until(site.is_read)
    with psycopg.connect(site.dsn) as writer:
        writer.execute("UPDATE late SET v = 1 WHERE id = 1")
        site.sql(f"ALTER PUBLICATION {site.name} ADD TABLE late")
        writer.execute("UPDATE late SET v = 2 WHERE id = 2")
        writer.execute("UPDATE early SET v = 2")
        site.configure(EARLY + LATE)
        with site.running() as service:
            service.until(lambda: service.said("snapshot waits for older transactions to end"))
            assert site.messages("late") == []
            writer.commit()
            service.until(lambda: len(site.messages("late")) == 4 and site.is_read())
    update, *reads = site.ops("late")
    assert (update, sorted(reads)) == (("update", "2"), [("read", "1"), ("read", "2"), ("read", "3")])
    assert site.state("late") == {str(key): {"id": key, "v": v} for key, v in ((1, 1), (2, 2), (3, 0))}
    sources = [
        message["value"]["provenance"]["source"] for message in (site.messages("early")[-1], *site.messages("late"))
    ]
    assert sources[0]["transaction"] == sources[1]["transaction"]
    assert all(source["position"] > sources[1]["position"] for source in sources[2:])


def test_an_entity_that_is_configured_again_gets_deletes_for_rows_that_were_deleted_meanwhile(site: Site) -> None:
    site.sql(TABLE.format("early"), TABLE.format("late"), "INSERT INTO late VALUES (1, 0), (2, 0)")
    site.configure(EARLY + LATE)
    with site.running() as service:
        service.until(site.is_read)
    site.configure(EARLY)
    with site.running(accept=True) as service:
        site.sql("DELETE FROM late WHERE id = 2", "INSERT INTO early VALUES (1, 0)")
        service.until(lambda: site.ops("early") == [("create", "1")])
    site.configure(EARLY + LATE)
    with site.running() as service:
        service.until(lambda: site.is_read() and site.state("late").keys() == {"1"})
        site.sql("INSERT INTO late VALUES (3, 0)")
        service.until(lambda: site.state("late").keys() == {"1", "3"})
        service.until(lambda: not site.checkpoint.repairs["open"])
    assert site.ops("late")[-1] == ("create", "3")
    assert site.ops("late")[-2] == ("delete", "2")


def test_a_table_that_is_new_to_the_changelog_is_read_without_a_repair(site: Site) -> None:
    site.sql(TABLE.format("early"), TABLE.format("late"), "INSERT INTO late VALUES (1, 0)")
    site.configure(EARLY)
    with site.running() as service:
        service.until(site.is_read)
    site.sql(f"ALTER PUBLICATION {site.name} ADD TABLE late")
    site.configure(EARLY + LATE)
    with site.running() as service:
        service.until(lambda: site.is_read() and site.state("late").keys() == {"1"})
    assert site.checkpoint.repairs == {}
