"""Tests the folder in which Kafka Streams has its stores.

Only one process of one application may use the folder. Stores whose rows could be wrong are deleted.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from changelog.connectors.views.streams.folder import Owner, claimed
from changelog.envelope.errors import ChangelogError, Kind

OWNER = Owner(application="booking-views", cluster="c1", topics={"booking.order": "id-1"}, tombstones_s=86_400.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that an earlier process left, with one store."""
    with claimed(tmp_path / "views", OWNER) as claim:
        (claim.stores / "booking-views" / "0_0" / "rocksdb").mkdir(parents=True)
        (claim.stores / "booking-views" / "0_0" / ".checkpoint").write_text("0", "utf-8")
    return tmp_path / "views"


def claimed_stores(folder: Path, owner: Owner) -> tuple[bool, str | None]:
    """Claims the folder for the owner. Returns whether the store is still there, and the reason if it was deleted."""
    with capture_logs() as events, claimed(folder, owner) as claim:
        is_kept = (claim.stores / "booking-views" / "0_0" / "rocksdb").exists()
    return is_kept, next((event["reason"] for event in events), None)


def refusal(folder: Path, owner: Owner = OWNER) -> ChangelogError:
    with pytest.raises(ChangelogError) as caught, claimed(folder, owner):
        pass
    assert "\n" not in str(caught.value)
    return caught.value


def test_stores_are_kept_while_they_can_be_continued(folder: Path) -> None:
    assert claimed_stores(folder, OWNER) == (True, None)
    more = replace(OWNER, topics={"booking.guest": "id-2", **OWNER.topics})
    assert claimed_stores(folder, more) == (True, None)
    with claimed(folder, more) as claim:
        assert claim.topics == ("booking.order", "booking.guest")
    assert claimed_stores(folder, OWNER) == (False, "topic booking.guest is no longer served")
    assert claimed_stores(folder, OWNER) == (False, None)


def test_stores_of_a_topic_that_was_created_again_are_deleted(folder: Path) -> None:
    again = replace(OWNER, topics={"booking.order": "id-9"})
    assert claimed_stores(folder, again) == (False, "topic booking.order was deleted and created again")


def age(folder: Path, seconds: float) -> None:
    """Makes the stores older: moves the time up to which they are complete back by this many seconds."""
    marker = json.loads((folder / "changelog.json").read_text("utf-8"))
    marker["complete_at_s"] -= seconds
    (folder / "changelog.json").write_text(json.dumps(marker), "utf-8")


def test_stores_that_could_lack_tombstones_are_deleted(folder: Path) -> None:
    age(folder, 40_000)
    assert claimed_stores(folder, OWNER) == (True, None)
    age(folder, 10_000)  # the claim in the line above did not make the stores newer
    is_kept, reason = claimed_stores(folder, OWNER)
    assert not is_kept
    assert reason == "their offsets are 0.6 days old, and the topics keep tombstones for 1.0 days"
    assert claimed_stores(folder, OWNER) == (False, None)


def test_stores_are_as_new_as_the_newest_time_that_was_noted(folder: Path) -> None:
    age(folder, 40_000)
    with claimed(folder, OWNER) as claim:
        claim.stored(time.time() - 10)
        claim.stored(time.time() - 60_000)  # the newest time counts
    age(folder, 40_000)
    assert claimed_stores(folder, OWNER) == (True, None)


def test_a_time_of_running_tables_counts_once_each_store_has_a_newer_checkpoint(folder: Path) -> None:
    task = folder / "stores" / "booking-views"
    (task / "1_0").mkdir()  # the folder of a table in memory

    def complete_at_s() -> float:
        return float(json.loads((folder / "changelog.json").read_text("utf-8"))["complete_at_s"])

    age(folder, 40_000)
    begin_s, first_s, second_s = complete_at_s(), time.time() - 20, time.time() - 10
    with claimed(folder, OWNER) as claim:
        claim.running(first_s)
        claim.running(second_s)
        assert complete_at_s() == begin_s
        (task / "2_0" / "rocksdb").mkdir(parents=True)
        os.utime(task / "0_0" / ".checkpoint", (time.time() + 1, time.time() + 1))
        claim.running(second_s)  # another store has no checkpoint yet
        assert complete_at_s() == begin_s
        (task / "2_0" / ".checkpoint").write_text("0", "utf-8")
        os.utime(task / "2_0" / ".checkpoint", (time.time() + 1, time.time() + 1))
        claim.running(second_s)
        assert complete_at_s() == first_s


def test_a_folder_of_another_owner_is_refused(folder: Path, tmp_path: Path) -> None:
    error = refusal(folder, replace(OWNER, application="shop-views"))
    assert error.kind is Kind.PRECONDITION
    assert error.message == f"the folder {folder} has the rows of the application booking-views, not of shop-views"
    assert "[serve.streams] path" in str(error)
    assert "of the cluster c1, not of c2" in refusal(folder, replace(OWNER, cluster="c2")).message
    (folder / "changelog.json").write_text("{", "utf-8")
    assert "does not hold served views" in refusal(folder).message
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("", "utf-8")
    assert "does not hold served views" in refusal(tmp_path / "home").message
    assert refusal(tmp_path / "home" / "letter").kind is Kind.STORAGE


def test_only_one_process_uses_a_folder(folder: Path) -> None:
    with claimed(folder, OWNER):
        error = refusal(folder)
    assert error.kind is Kind.IN_USE
    assert str(error).startswith(f"the rows in {folder} are served by process {os.getpid()}; stop it, or give this one")
    assert claimed_stores(folder, OWNER) == (True, None)


def test_a_start_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), claimed(tmp_path / "views", OWNER):
        raise ZeroDivisionError
    (tmp_path / "views" / "changelog.json").unlink()
    (tmp_path / "views" / "stores").rmdir()
    assert claimed_stores(tmp_path / "views", OWNER) == (False, None)
