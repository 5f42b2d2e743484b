"""Tests how repairs are planned. A repair makes the changelog of an entity fit its table again.

A signal, which is a message to the service, asks for a repair. The service then reads the whole table, or looks up the
keys that the signal names. Finally, a *sweep* deletes from the changelog all keys that the table lacks.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from changelog.connectors.capture.tables.repairs import (
    ENDED_MAX,
    LookupProgress,
    Reached,
    Repair,
    Repairs,
    obey,
    read_again,
)
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


def after_signal(
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
def test_stored_repairs_are_read_back(stored: Repairs) -> None:
    assert Repairs.parse(stored.to_json()) == stored


@pytest.mark.parametrize("stored", [{"open": {"order": {}}}, {"open": 1}, {"revision": "x"}, {"open": {"order": None}}])
def test_stored_repairs_that_are_malformed_are_refused(stored: Any) -> None:
    with pytest.raises(ChangelogError) as caught:
        Repairs.parse(stored)
    assert caught.value.kind is Kind.MALFORMED


def test_a_rebuild_reads_the_table_and_then_sweeps() -> None:
    repairs_, windows = after_signal("rebuild")
    assert windows["order"] == {"complete": False, "again": ["*"]}
    assert repairs_.open["order"].stage == "table"
    assert (repairs_.open["order"].start, repairs_.revision) == (str(AT), 1)
    reading = repairs_.progressed(windows, Reached(revision=1))
    assert reading == repairs_
    sweeping = repairs_.progressed(WINDOWS, Reached(revision=1, idle=True))
    assert sweeping.open["order"].stage == "sweep"
    assert sweeping.revision == 2
    swept_in_part = sweeping.progressed(
        WINDOWS, Reached(revision=2, idle=True, sweeping=frozenset({"order"}), swept={"order": True})
    )
    assert (swept_in_part.open["order"].stage, swept_in_part.revision) == ("sweep", 3)
    swept = swept_in_part.progressed(
        WINDOWS, Reached(revision=3, idle=True, sweeping=frozenset({"order"}), swept={"order": False})
    )
    assert (swept.open, swept.ended, swept.revision) == ({}, {"s": "done"}, 3)


def test_a_sweep_waits_until_the_source_opens_again_with_nothing_left_to_read() -> None:
    repairs_, _ = after_signal("rebuild")
    assert repairs_.progressed(WINDOWS, Reached(revision=1, idle=False)).revision == 1


def test_keys_are_looked_up_and_those_that_the_table_lacks_are_swept() -> None:
    repairs_, windows = after_signal("republish", keys=("1", "2"))
    assert windows == WINDOWS
    half = repairs_.progressed(
        WINDOWS, Reached(revision=1, lookups={"order": LookupProgress(keys_left=("2",), absent=("1",))})
    )
    assert (half.open["order"].keys, half.open["order"].absent, half.revision) == (("2",), ("1",), 1)
    with_absent = repairs_.progressed(
        WINDOWS, Reached(revision=1, idle=True, lookups={"order": LookupProgress(keys_left=(), absent=("1",))})
    )
    assert (with_absent.open["order"].stage, with_absent.revision) == ("sweep", 2)
    with_all = repairs_.progressed(
        WINDOWS, Reached(revision=1, idle=True, lookups={"order": LookupProgress(keys_left=(), absent=())})
    )
    assert (with_all.open, with_all.ended) == ({}, {"s": "done"})


def test_signals_for_the_same_entity_are_merged() -> None:
    keys = after_signal("republish", keys=("1", "2"))
    more = after_signal("republish", keys=("2", "3"), to=keys, id_="t")
    assert more[0].open["order"].keys == ("1", "2", "3")
    assert more[0].open["order"].ids == ("s", "t")
    rebuilt = after_signal("rebuild", to=more, id_="u", at=LATER)
    assert rebuilt[0].open["order"] == Repair(ids=("s", "t", "u"), start=str(LATER), table=True, sweep=True)


@pytest.mark.parametrize("do", ["rebuild", "republish"])
def test_a_second_signal_makes_a_table_that_is_being_read_start_again(do: Do) -> None:
    """The reason for the second signal may be a row in the part of the table that was already read."""
    first, windows = after_signal("rebuild")
    partly = {**windows, "order": {**windows["order"], "signature": "x", "leaves": {}}}
    second, windows_after = after_signal(do, to=(first, partly), id_="t", at=LATER)
    assert second.open["order"] == Repair(ids=("s", "t"), start=str(LATER), table=True, sweep=True)
    assert windows_after["order"] == {"complete": False, "again": ["*"]}
    assert second.revision == first.revision + 1


def test_keys_that_are_requested_during_a_rebuild_are_looked_up() -> None:
    rebuilt = after_signal("rebuild")
    with_keys, windows = after_signal("republish", keys=("1",), to=rebuilt, id_="t", at=LATER)
    assert with_keys.open["order"] == Repair(ids=("s", "t"), start=str(AT), table=True, sweep=True, keys=("1",))
    assert windows == rebuilt[1]
    with_absent = with_keys.progressed(
        WINDOWS, Reached(revision=2, idle=True, lookups={"order": LookupProgress(keys_left=(), absent=("1",))})
    )
    assert with_absent.open["order"] == Repair(ids=("s", "t"), start=str(AT), sweep=True, absent=("1",))


def test_a_rebuild_while_another_one_sweeps_starts_again() -> None:
    repairs_, _ = after_signal("rebuild")
    sweeping = repairs_.progressed(WINDOWS, Reached(revision=1, idle=True))
    restarted, windows = after_signal("rebuild", to=(sweeping, WINDOWS), id_="t", at=LATER)
    assert restarted.open["order"] == Repair(ids=("s", "t"), start=str(LATER), table=True, sweep=True)
    assert not windows["order"]["complete"]


def test_too_many_or_too_large_keys_make_the_service_read_the_table() -> None:
    for keys in (tuple(map(str, range(9_000))), tuple("x" * 200_000 + str(number) for number in range(1))):
        first = after_signal("republish", keys=keys)
        second = after_signal("republish", keys=tuple(f"{key} more" for key in keys), to=first, id_="t")
        assert second[0].open["order"] == Repair(ids=("s", "t"), start=str(AT), table=True, sweep=True)
        assert not second[1]["order"]["complete"]


def test_the_limit_for_keys_counts_their_bytes_in_the_checkpoint() -> None:
    """A checkpoint is JSON, in which a control character takes six bytes."""
    [plain, escaped] = [after_signal("republish", keys=(char * 50_000,)) for char in ("x", "\x01")]
    assert plain[0].open["order"].keys == ("x" * 50_000,)
    assert escaped[0].open["order"] == Repair(ids=("s",), start=str(AT), table=True, sweep=True)


def test_a_signal_that_comes_twice_counts_once() -> None:
    rebuilt = after_signal("rebuild")
    assert after_signal("rebuild", to=rebuilt) == rebuilt
    paused = after_signal("pause")
    assert after_signal("pause", to=paused) == paused


def test_an_unknown_entity_is_refused() -> None:
    with pytest.raises(ChangelogError):
        after_signal("rebuild", "nobody")


def test_a_repair_that_is_cancelled_leaves_stale_columns_stale() -> None:
    republished = after_signal("republish", "guest")
    assert republished[1]["guest"] == {"complete": False, "again": ["*", "name"]}
    cancelled, windows = after_signal("cancel", "guest", to=republished, id_="c")
    assert windows == WINDOWS
    assert cancelled.ended == {"s": "cancelled", "c": "done"}
    assert not cancelled.open


def test_columns_stay_stale_if_only_a_part_of_the_table_is_read_again() -> None:
    """A column is *stale* if older rows of the changelog have outdated values in it. If, for example, a partition is
    attached, only the rows of this partition are read again. So the column stays stale.
    """
    part = {"signature": "s", "leaves": {"old": {"filenode": 1, "pages": 1, "left": []}}}
    opened, windows = read_again(Repairs(), WINDOWS, "guest", str(AT), sweep=False, part=part)
    assert after_signal("cancel", "guest", to=(opened, windows))[1]["guest"] == WINDOWS["guest"]
    leaves = {
        name: LeafProgress(filenode=number, pages=1, ranges_left=[(0, None)])
        for number, name in ((1, "old"), (2, "new"))
    }
    reading = TableProgress.resume("guest", "s", leaves, windows["guest"])
    resumed = TableProgress.resume("guest", "s", leaves, reading.to_json())
    chunk = resumed.next_range()
    assert chunk is not None
    assert chunk.leaf == "new"
    resumed.publish(chunk)
    assert resumed.to_json() == WINDOWS["guest"]
    altered = TableProgress.resume("guest", "other", leaves, windows["guest"])
    assert "stale" not in altered.to_json(), "no column is stale, because the whole table is read"


def test_a_first_read_starts_again_and_cannot_be_cancelled() -> None:
    partly = {**WINDOWS, "new": {"complete": False, "signature": "x", "leaves": {}}}
    rebuilt = after_signal("rebuild", "new", to=(Repairs(), partly))
    assert rebuilt[1]["new"] == {"complete": False}
    assert after_signal("cancel", None, to=rebuilt, id_="c")[1]["new"] == {"complete": False}


def test_paused_entities_are_not_swept() -> None:
    repairs_, _ = after_signal("rebuild")
    paused, _ = after_signal("pause", None, to=(repairs_, WINDOWS), id_="p")
    assert paused.paused == set(WINDOWS)
    assert not paused.sweeps(WINDOWS)
    progressed = paused.progressed(WINDOWS, Reached(revision=paused.revision, idle=True))
    assert progressed.revision == paused.revision
    resumed, _ = after_signal("resume", "order", to=(progressed, WINDOWS), id_="r")
    assert resumed.sweeps(WINDOWS) == {"order"}
    assert resumed.changed(progressed) == {"order"}


def test_only_the_last_signals_are_remembered() -> None:
    state = Repairs(), WINDOWS
    for number in range(2 * ENDED_MAX):
        state = after_signal("resume", to=state, id_=str(number))
    assert list(state[0].ended) == [str(number) for number in range(ENDED_MAX, 2 * ENDED_MAX)]


def test_an_entity_that_is_no_longer_configured_is_not_repaired() -> None:
    repairs_, _ = after_signal("rebuild")
    assert not repairs_.of({"guest"}).open
