"""What a signal changes of what is to be read, and what an opening's progress leaves of it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.tables.repairs import ENDED_MAX, LookedUp, Reached, Repair, Repairs, obey, read_again
from changelog.connectors.capture.tables.table_progress import COMPLETE
from changelog.connectors.sources.postgres.snapshot.page_progress import LeafProgress, TableProgress
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position
from changelog.envelope.signal import Do, Signal

AT = Position(1, 100, 0)
LATER = Position(1, 200, 0)
WINDOWS: dict[str, Any] = {"order": COMPLETE, "guest": {**COMPLETE, "stale": ["name"]}, "new": {"complete": False}}

numbers = st.lists(st.text(max_size=5), max_size=5, unique=True).map(tuple)
repairs = st.builds(
    Repair, ids=numbers, start=st.just(str(AT)), table=st.booleans(), sweep=st.booleans(), keys=numbers, absent=numbers
)


def told(
    do: Do,
    entity: str | None = "order",
    keys: tuple[str, ...] | None = None,
    *,
    to: tuple[Repairs, Any] = (Repairs(), WINDOWS),
    id_: str = "s",
    at: Position = AT,
) -> tuple[Repairs, Any]:
    return obey(*to, Signal(do=do, id=id_, entity=entity, keys=keys), at)


@given(
    st.builds(
        Repairs,
        open=st.dictionaries(st.text(max_size=5), repairs, max_size=3),
        paused=st.frozensets(st.text(max_size=5), max_size=3),
        ended=st.dictionaries(st.text(max_size=5), st.sampled_from(["done", "cancelled"]), max_size=3),
        revision=st.integers(0, 1 << 40),
    )
)
def test_what_was_stored_is_read(found: Repairs) -> None:
    assert Repairs.parse(found.to_json()) == found


@pytest.mark.parametrize("stored", [{"open": {"order": {}}}, {"open": 1}, {"revision": "x"}, {"open": {"order": None}}])
def test_what_cannot_be_read_is_malformed(stored: Any) -> None:
    with pytest.raises(ChangelogError) as caught:
        Repairs.parse(stored)
    assert caught.value.kind is Kind.MALFORMED


def test_a_rebuild_reads_the_table_and_then_sweeps() -> None:
    found, windows = told("rebuild")
    assert windows["order"] == {"complete": False, "again": ["*"]}
    assert found.open["order"].stage == "table"
    assert (found.open["order"].start, found.revision) == (str(AT), 1)
    reading = found.progressed(windows, Reached(revision=1))
    assert reading == found
    read = found.progressed(WINDOWS, Reached(revision=1, idle=True))
    assert read.open["order"].stage == "sweep"
    assert read.revision == 2
    more = read.progressed(
        WINDOWS, Reached(revision=2, idle=True, sweeping=frozenset({"order"}), swept={"order": True})
    )
    assert (more.open["order"].stage, more.revision) == ("sweep", 3)
    done = more.progressed(
        WINDOWS, Reached(revision=3, idle=True, sweeping=frozenset({"order"}), swept={"order": False})
    )
    assert (done.open, done.ended, done.revision) == ({}, {"s": "done"}, 3)


def test_a_sweep_waits_until_the_opening_before_it_has_no_more_to_do() -> None:
    found, _ = told("rebuild")
    assert found.progressed(WINDOWS, Reached(revision=1, idle=False)).revision == 1


def test_keys_are_looked_up_and_those_that_are_not_there_are_swept() -> None:
    found, windows = told("republish", keys=("1", "2"))
    assert windows == WINDOWS
    half = found.progressed(WINDOWS, Reached(revision=1, looked_up={"order": LookedUp(left=("2",), absent=("1",))}))
    assert (half.open["order"].keys, half.open["order"].absent, half.revision) == (("2",), ("1",), 1)
    gone = found.progressed(
        WINDOWS, Reached(revision=1, idle=True, looked_up={"order": LookedUp(left=(), absent=("1",))})
    )
    assert (gone.open["order"].stage, gone.revision) == ("sweep", 2)
    there = found.progressed(WINDOWS, Reached(revision=1, idle=True, looked_up={"order": LookedUp(left=(), absent=())}))
    assert (there.open, there.ended) == ({}, {"s": "done"})


def test_signals_of_one_entity_are_merged() -> None:
    keys = told("republish", keys=("1", "2"))
    more = told("republish", keys=("2", "3"), to=keys, id_="t")
    assert more[0].open["order"].keys == ("1", "2", "3")
    assert more[0].open["order"].ids == ("s", "t")
    rebuilt = told("rebuild", to=more, id_="u", at=LATER)
    assert rebuilt[0].open["order"] == Repair(ids=("s", "t", "u"), start=str(LATER), table=True, sweep=True)


@pytest.mark.parametrize("do", ["rebuild", "republish"])
def test_a_signal_while_the_table_is_read_for_another_has_it_read_from_its_start(do: Do) -> None:
    """Its reason may be newer than what is read already."""
    first, windows = told("rebuild")
    partly = {**windows, "order": {**windows["order"], "signature": "x", "leaves": {}}}
    second, again = told(do, to=(first, partly), id_="t", at=LATER)
    assert second.open["order"] == Repair(ids=("s", "t"), start=str(LATER), table=True, sweep=True)
    assert again["order"] == {"complete": False, "again": ["*"]}
    assert second.revision == first.revision + 1


def test_keys_that_are_asked_for_during_a_rebuild_are_looked_up() -> None:
    rebuilt = told("rebuild")
    asked, windows = told("republish", keys=("1",), to=rebuilt, id_="t", at=LATER)
    assert asked.open["order"] == Repair(ids=("s", "t"), start=str(AT), table=True, sweep=True, keys=("1",))
    assert windows == rebuilt[1]
    gone = asked.progressed(
        WINDOWS, Reached(revision=2, idle=True, looked_up={"order": LookedUp(left=(), absent=("1",))})
    )
    assert gone.open["order"] == Repair(ids=("s", "t"), start=str(AT), sweep=True, absent=("1",))


def test_a_rebuild_while_another_one_sweeps_begins_anew() -> None:
    found, _ = told("rebuild")
    sweeping = found.progressed(WINDOWS, Reached(revision=1, idle=True))
    again, windows = told("rebuild", to=(sweeping, WINDOWS), id_="t", at=LATER)
    assert again.open["order"] == Repair(ids=("s", "t"), start=str(LATER), table=True, sweep=True)
    assert not windows["order"]["complete"]


def test_keys_that_are_too_many_or_too_large_have_the_table_read() -> None:
    for some in (tuple(map(str, range(9_000))), tuple("x" * 200_000 + str(number) for number in range(1))):
        first = told("republish", keys=some)
        second = told("republish", keys=tuple(f"{key} more" for key in some), to=first, id_="t")
        assert second[0].open["order"] == Repair(ids=("s", "t"), start=str(AT), table=True, sweep=True)
        assert not second[1]["order"]["complete"]


def test_a_signal_that_comes_twice_is_one() -> None:
    found = told("rebuild")
    assert told("rebuild", to=found) == found
    paused = told("pause")
    assert told("pause", to=paused) == paused


def test_an_entity_that_is_not_there_is_refused() -> None:
    with pytest.raises(ChangelogError):
        told("rebuild", "nobody")


def test_a_whole_table_takes_the_mark_of_stale_columns_away_and_cancelling_gives_it_back() -> None:
    found = told("republish", "guest")
    assert found[1]["guest"] == {"complete": False, "again": ["*", "name"]}
    cancelled, windows = told("cancel", "guest", to=found, id_="c")
    assert windows == WINDOWS
    assert cancelled.ended == {"s": "cancelled", "c": "done"}
    assert not cancelled.open


def test_columns_stay_stale_where_only_a_part_of_the_table_is_read_again() -> None:
    """As when a partition is attached: nobody has read the rows of the others."""
    part = {"signature": "s", "leaves": {"old": {"filenode": 1, "pages": 1, "left": []}}}
    opened, windows = read_again(Repairs(), WINDOWS, "guest", str(AT), sweep=False, part=part)
    assert told("cancel", "guest", to=(opened, windows))[1]["guest"] == WINDOWS["guest"]
    leaves = {
        name: LeafProgress(filenode=number, pages=1, left=[(0, None)]) for number, name in ((1, "old"), (2, "new"))
    }
    reading = TableProgress.resume("guest", "s", leaves, windows["guest"])
    again = TableProgress.resume("guest", "s", leaves, reading.to_json())
    taken = again.next_range()
    assert taken is not None
    assert taken.leaf == "new"
    again.publish(taken)
    assert again.to_json() == WINDOWS["guest"]
    altered = TableProgress.resume("guest", "other", leaves, windows["guest"])
    assert "stale" not in altered.to_json(), "all of it is read"


def test_a_first_reading_begins_anew_and_cannot_be_cancelled() -> None:
    partly = {**WINDOWS, "new": {"complete": False, "signature": "x", "leaves": {}}}
    found = told("rebuild", "new", to=(Repairs(), partly))
    assert found[1]["new"] == {"complete": False}
    assert told("cancel", None, to=found, id_="c")[1]["new"] == {"complete": False}


def test_what_is_paused_is_not_swept() -> None:
    found, _ = told("rebuild")
    paused, _ = told("pause", None, to=(found, WINDOWS), id_="p")
    assert paused.paused == set(WINDOWS)
    assert not paused.sweeps(WINDOWS)
    left = paused.progressed(WINDOWS, Reached(revision=paused.revision, idle=True))
    assert left.revision == paused.revision
    resumed, _ = told("resume", "order", to=(left, WINDOWS), id_="r")
    assert resumed.sweeps(WINDOWS) == {"order"}
    assert resumed.changed(left) == {"order"}


def test_only_the_last_signals_are_remembered() -> None:
    found = Repairs(), WINDOWS
    for number in range(2 * ENDED_MAX):
        found = told("resume", to=found, id_=str(number))
    assert list(found[0].ended) == [str(number) for number in range(ENDED_MAX, 2 * ENDED_MAX)]


def test_an_entity_that_is_no_longer_configured_is_not_repaired() -> None:
    found, _ = told("rebuild")
    assert not found.of({"guest"}).open
