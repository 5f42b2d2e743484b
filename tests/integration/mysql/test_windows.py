"""The campaign over chunks of a hot table, for a few rounds, and a proof that its judge finds wrong rows."""

import pytest

from changelog.connectors.servers.mysql import Server
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.snapshot import chunk_reader
from changelog.connectors.sources.mysql.snapshot.visibility import Delivered, PlaceSnapshot
from tests.campaigns._pieces import run
from tests.campaigns.mysql_windows import SETUPS, campaign, read_once

END = 1 << 62


@pytest.mark.campaign
@pytest.mark.usefixtures("starts_servers")
def test_chunks_under_writers_have_the_rows_of_their_place(seed: int) -> None:
    figures = run(campaign(), len(SETUPS), seed)
    assert figures["reads"]
    assert figures["chunks"].keys() == {setup.name for setup in SETUPS}
    assert {name for name, wrong in figures["marks_wrong"].items() if wrong} == {"mysql_unordered"}


@pytest.mark.campaign
def test_the_judge_finds_rows_that_were_changed_while_they_were_read(
    mysql_server: Server, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is made to claim that its snapshots see all changes. So it leaves out no row that changed later."""

    def see_everything(reading: Connection, _asking: Connection, _delivered: Delivered) -> PlaceSnapshot:
        reading.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        return PlaceSnapshot(end=END)

    monkeypatch.setattr(chunk_reader, "take_snapshot", see_everything)
    judge, _ = read_once(mysql_server, seed)
    assert judge.stale
