"""Tests how an operator gets a service to start again after changes were lost (a gap), or after settings were changed.

The last test checks a problem that does not stop the service.
"""

import re

import pytest

from changelog.connectors.capture import throttled_warnings
from changelog.connectors.servers.postgres import PostgresServer
from changelog.envelope.errors import OVER_GAP
from tests.integration.bad_input import GUEST, ONE
from tests.integration.site import Site
from tests.servers import fresh_database, lose_log

# Gaps: the service cannot read all changes any more. tests/integration/test_gaps.py tests how it continues after a gap


def test_a_slot_that_was_dropped_is_a_gap(stopped_site: Site) -> None:
    stopped_site.sql(f"SELECT pg_drop_replication_slot('{stopped_site.name}')", "INSERT INTO guest VALUES (2)")
    line = stopped_site.refused()
    assert f"replication slot {stopped_site.name} no longer exists, although the changelog was begun with it" in line
    assert line.endswith(f"a new slot cannot reach back to what was published; {OVER_GAP}")


def test_a_slot_that_moved_on_is_a_gap(stopped_site: Site) -> None:
    stopped_site.sql(
        "INSERT INTO guest VALUES (2)",
        f"SELECT pg_replication_slot_advance('{stopped_site.name}', pg_current_wal_lsn())",
    )
    line = stopped_site.refused()
    assert re.match(
        r"the slot has moved to \w+/\w+, beyond the changelog's \w+/\w+: the changes in between are lost", line
    )
    assert line.endswith(OVER_GAP)


def test_a_slot_that_lost_its_log_is_a_gap(stopped_site: Site) -> None:
    lose_log(stopped_site.dsn, stopped_site.name)
    line = stopped_site.refused()
    assert f"slot {stopped_site.name} has lost its log (the server removed or invalidated it)" in line


def test_another_cluster_is_refused_until_it_is_accepted(stopped_site: Site, other_cluster: PostgresServer) -> None:
    other_cluster.stop()
    other_cluster.settings["wal_level"] = "logical"
    other_cluster.start()
    with fresh_database(other_cluster) as dsn:
        upgraded = Site(dsn, stopped_site.folder)
        upgraded.sql(GUEST)
        stopped_site.configure(ONE, dsn=dsn)
        line = stopped_site.refused()
        assert "although the changelog was begun with it" not in line
        assert re.match(r"this is database cluster \d+, but the changelog comes from cluster \d+", line)
        assert f"after an upgrade that lost nothing, use `changelog run --accept-cluster`; otherwise {OVER_GAP}" in line
        with stopped_site.running(accept_cluster=True) as running:
            running.until(lambda: running.said("streaming"))
            upgraded.sql("INSERT INTO guest VALUES (2)")
            running.until(lambda: len(stopped_site.ops("guest")) == 2)
        with stopped_site.running() as running:
            upgraded.sql("UPDATE guest SET name = 'Bo' WHERE id = 2")
            running.until(lambda: len(stopped_site.ops("guest")) == 3)
        assert stopped_site.call("drop", "--slot", "--yes")[0] == 0
    positions = [message["value"]["provenance"]["source"]["position"] for message in stopped_site.messages()]
    assert [position[:8] for position in positions] == ["00000001", "00000002", "00000002"]


# Settings that determine what is in the changelog


@pytest.mark.parametrize(
    ("change", "setting"),
    [
        ('key = ["name"]', "key, partition_by"),
        ("partitions = 4", "partitions"),
        ('mask = { email = "sha256" }\n[mask]\nkey = "sixteen letters at least"', "mask, mask_id"),
        ('exclude_columns = ["email"]', "exclude_columns"),
        ("immutable = true", "immutable"),
    ],
)
def test_a_changed_setting_is_refused_until_it_is_accepted(stopped_site: Site, change: str, setting: str) -> None:
    stopped_site.sql("ALTER TABLE guest ALTER name SET NOT NULL", "CREATE UNIQUE INDEX ON guest (name)")
    stopped_site.configure(ONE + change)
    partition_warning = ", and the rows of one key may be in two partitions, so only their positions tell their order"
    warning = partition_warning if "partition" in setting else ""
    assert stopped_site.refused() == (
        f"the configuration no longer fits the changelog: entity guest has other settings: {setting}; "
        "restore the earlier configuration, or go on with `changelog run --accept-config`: "
        f"older rows keep their old shape{warning}"
    )
    stopped_site.sql("INSERT INTO guest VALUES (2, 'Bo', 'bo@example.org')")
    with stopped_site.running(accept=True) as running:
        running.until(lambda: 2 in _ids(stopped_site))
    with stopped_site.running() as running:
        stopped_site.sql("INSERT INTO guest VALUES (3, 'Cy', 'cy@example.org')")
        running.until(lambda: 3 in _ids(stopped_site))


def _ids(site: Site) -> set[int]:
    """Returns the ids of the current rows. The ids come from the rows themselves, because the setting `key` changes the
    keys.
    """
    return {row["id"] for row in site.state("guest").values()}


# Problems that do not stop the service


def test_invalid_stamps_are_counted_and_rarely_reported(stopped_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttled_warnings, "TELL_EVERY_S", 3600.0)  # longer than the test takes
    invalid_stamp = "SELECT pg_logical_emit_message(true, 'provenance', 'nonsense')"
    with stopped_site.running() as running:
        running.until(lambda: running.said("streaming"))
        for number in range(2, 12):
            stopped_site.sql(f"BEGIN; {invalid_stamp}; INSERT INTO guest VALUES ({number}); COMMIT")
        running.until(lambda: len(stopped_site.ops("guest")) == 11)
        running.until(lambda: "changelog_stamps_invalid_total 10.0" in running.get("metrics"))
        [warning] = [event for event in running.events() if event["event"] == "provenance stamps not valid"]
        assert warning["why"] == "it is not a JSON object"
        sources = [message["value"]["provenance"]["source"] for message in stopped_site.messages("guest")[1:]]
        assert warning["last_transaction"] in {source["transaction"] for source in sources}
    assert {message["value"]["provenance"]["serviceName"] for message in stopped_site.messages()} == {"unknown"}
