"""Where the changelog leads no further: gaps, changed settings and policies, and how each is passed."""

import re

import pytest

from changelog.connectors.capture import throttled_warnings
from changelog.connectors.servers.postgres import Server
from changelog.envelope.errors import OVER_GAP
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.servers import fresh_database, lose_log

# What leads no further: a gap. The way on is in tests/integration/test_gaps.py


def test_a_slot_that_was_dropped(begun: Site) -> None:
    begun.sql(f"SELECT pg_drop_replication_slot('{begun.name}')", "INSERT INTO guest VALUES (2)")
    line = begun.refused()
    assert f"replication slot {begun.name} does not exist, and the changelog was begun with it" in line
    assert line.endswith(f"a new slot cannot reach back to what was published; {OVER_GAP}")


def test_a_slot_that_moved_on(begun: Site) -> None:
    begun.sql(
        "INSERT INTO guest VALUES (2)",
        f"SELECT pg_replication_slot_advance('{begun.name}', pg_current_wal_lsn())",
    )
    line = begun.refused()
    assert re.match(
        r"the slot has moved to \w+/\w+, beyond the changelog's \w+/\w+: the changes in between are lost", line
    )
    assert line.endswith(OVER_GAP)


def test_a_slot_that_lost_its_log(begun: Site) -> None:
    lose_log(begun.dsn, begun.name)
    line = begun.refused()
    assert f"slot {begun.name} has lost its log (the server removed or invalidated it)" in line


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
        assert re.match(r"this is database cluster \d+, but the changelog comes from cluster \d+", line)
        assert f"after an upgrade that lost nothing, use `changelog run --accept-cluster`; otherwise {OVER_GAP}" in line
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
    parted = ", and a key's rows may be in two partitions, where only their positions tell the order"
    said = parted if "partition" in named else ""
    assert begun.refused() == (
        f"the configuration no longer fits the changelog: entity guest has another {named}; put it back, "
        f"or go on with `changelog run --accept-config`: older rows keep their old shape{said}"
    )
    begun.sql("INSERT INTO guest VALUES (2, 'Bo', 'bo@example.org')")
    with begun.running(accept=True) as running:
        running.until(lambda: 2 in _ids(begun))
    with begun.running() as running:
        begun.sql("INSERT INTO guest VALUES (3, 'Cy', 'cy@example.org')")
        running.until(lambda: 3 in _ids(begun))


def _ids(site: Site) -> set[int]:
    """Of the rows that are there, under whichever key: under another one they are read again."""
    return {row["id"] for row in site.state("guest").values()}


# What is no stop


def test_stamps_that_are_none_are_counted_and_told_rarely(begun: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttled_warnings, "TELL_EVERY_S", 3600.0)  # however long the writing takes
    bad = "SELECT pg_logical_emit_message(true, 'provenance', 'nonsense')"
    with begun.running() as running:
        running.until(lambda: running.said("streaming"))
        for number in range(2, 12):
            begun.sql(f"BEGIN; {bad}; INSERT INTO guest VALUES ({number}); COMMIT")
        running.until(lambda: len(begun.ops("guest")) == 11)
        running.until(lambda: "changelog_stamps_invalid_total 10.0" in running.get("metrics"))
        [told] = [each for each in running.events() if each["event"] == "provenance stamps not valid"]
        assert told["why"] == "it is not a JSON object"
        sources = [each["value"]["provenance"]["source"] for each in begun.messages("guest")[1:]]
        assert told["last_transaction"] in {source["transaction"] for source in sources}
    assert {each["value"]["provenance"]["serviceName"] for each in begun.messages()} == {"unknown"}
