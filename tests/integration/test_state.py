"""Tests that a service with a `[state]` adds old rows and unchanged values to its messages if PostgreSQL's log lacks
them.

A `[state]` is a local store of the current row of every key. By default, PostgreSQL's log has at most the keys of old
rows, and lacks large values that an update did not change.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from changelog.connectors.state.rocks import RocksStore
from tests.integration.site import Site

TABLE = """
CREATE TABLE item (id int PRIMARY KEY, place int NOT NULL, name text, body text, meta jsonb);
ALTER TABLE item ALTER COLUMN body SET STORAGE EXTERNAL;
INSERT INTO item SELECT n, n, 'name ' || n, repeat('long ', 2000), 'null' FROM generate_series(1, 5) AS n;
"""
ENTITY = '[entities.item]\ntable = "public.item"\n'
STATE = '[state]\npath = "state"\n'


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    site.sql(TABLE)
    site.configure(ENTITY + STATE)
    return site


def last(site: Site) -> dict[str, Any]:
    """Returns three parts of the last message: the current row, the original row, and the source in its provenance."""
    message = site.messages("item")[-1]["value"]
    return {"source": message["provenance"]["source"], "current": message["current"], "original": message["original"]}


def test_originals_and_unchanged_values_are_filled_in(site: Site, tmp_path: Path) -> None:
    with site.running() as service:
        service.until(site.is_read)
        row = site.messages("item")[0]["value"]["current"]
        site.sql("UPDATE item SET name = 'new' WHERE id = 1")
        service.until(lambda: len(site.ops("item")) == 6)
        service.until(lambda: 'changelog_events_total{entity="item",op="update"} 1.0' in service.get("/metrics"))
        metrics = service.get("/metrics")
    assert "changelog_original_unknown_total{" not in metrics
    assert "changelog_state_position_info{" in metrics
    message = last(site)
    assert message["original"] == row
    assert message["current"] == {**row, "name": "new"}
    assert message["source"]["jsonNullOriginal"] == ["meta"]
    assert not {"unavailable", "unavailableOriginal"} & message["source"].keys()
    shutil.rmtree(tmp_path / "state")
    with site.running() as service:
        site.sql("ALTER TABLE item ADD COLUMN more int", "DELETE FROM item WHERE id = 1")
        service.until(lambda: len(site.ops("item")) == 7)
    message = last(site)
    assert message["original"] == {**row, "name": "new"}
    assert message["source"]["unavailableOriginal"] == ["more"], "no earlier message has this column"


def test_without_a_state_originals_are_unknown(site: Site) -> None:
    site.configure(ENTITY)
    with site.running() as service:
        service.until(site.is_read)
        site.sql("UPDATE item SET name = 'new' WHERE id = 1")
        service.until(lambda: len(site.ops("item")) == 6)
        service.until(lambda: 'changelog_original_unknown_total{entity="item"} 1.0' in service.get("/metrics"))
    message = site.messages("item")[-1]["value"]
    assert "original" not in message
    assert message["provenance"]["source"]["unavailable"] == ["body"]


def statuses(site: Site, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Returns the status of each finding of `changelog check` that is about old rows in the log."""
    site.call("check", "--json")
    findings = json.loads(capsys.readouterr().out)
    texts = ("old rows", "replica identity")
    return [finding["status"] for finding in findings if any(text in finding["message"] for text in texts)]


def test_check_asks_for_whole_old_rows_only_where_needed(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """With a state, whole old rows are needed in the log only if columns outside the key choose the partition."""
    assert statuses(site, capsys) == []
    site.configure(ENTITY)
    assert statuses(site, capsys) == ["warn"]
    site.configure(f'{ENTITY}partition_by = ["place"]\n{STATE}')
    assert statuses(site, capsys) == ["fail"], "the old partition must be known"


def test_status_shows_the_state(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    with site.running() as service:
        service.until(site.is_read)
    site.call("status", "--json")
    state = json.loads(capsys.readouterr().out)["state"]
    assert state == {"path": str(site.folder / "state"), "bytes": None, "restored_rows": None}


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(site: Site) -> None:
    store = RocksStore(site.folder / "state", name=site.name, changelog=f"files {site.log}")
    assert f"is used by process {os.getpid()}; stop that service" in site.refused()
    store.close()
    shutil.rmtree(site.folder / "state")
    RocksStore(site.folder / "state", name="other", changelog=f"files {site.log}").close()
    assert "has the state of another changelog: other in files" in site.refused()
    shutil.rmtree(site.folder / "state")
    (site.folder / "state").touch()
    assert site.refused().startswith(f"cannot keep the state in {site.folder}/state: Not a directory")
