"""Finds out who set each attribute of one row, and which state the row had at a moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from changelog.connectors.history.key_records import KeyRecords, ends_life, is_arrival, life_begin
from changelog.connectors.history.moments import Moment, as_of
from changelog.connectors.history.refusals import no_change, not_yet
from changelog.connectors.sinks import Log
from changelog.envelope.blame import Blame, BlameFold
from changelog.envelope.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """A key's row at a moment: its state with the blame of each attribute, and the record of its last change."""

    blame: Blame
    change: Record


def key_blame(log: Log, entity: str, key: str, *, at: Moment | None = None) -> Blame:
    """Returns the blame of a key's row: who set each attribute that it had at the moment `at`, or has now.

    `key` is the canonical text of the key (`changelog.envelope.key.key_text`). If the row moved here from another key,
    the attributes that the move did not change keep the writers that they had at the other key.

    Raises ChangelogError: USAGE if the changelog has no change of the key, or none up to `at`, and the errors of
    `Log.read_key`.
    """
    return key_state(log, entity, key, at=at).blame


def key_state(log: Log, entity: str, key: str, *, at: Moment | None = None) -> KeyState:
    """Returns the state of a key's row, with the change that made it. Arguments and errors are those of `key_blame`."""
    keys = KeyRecords(log, entity)
    everything = keys.of(key)
    if not everything:
        raise no_change(log, entity, key)
    records = as_of(everything, at)
    if at is not None and not records:
        raise not_yet(log, entity, key, at, everything[0])
    return KeyState(blame=_folded(keys, records).result(), change=records[-1])


def _folded(keys: KeyRecords, records: Sequence[Record]) -> BlameFold:
    """Folds the last life of a row (`key_records` says what a life is), beginning at the key where this life began."""
    lives = [_last_life(records)]
    while arrival := _arrival(lives[-1]):
        lives.append(_last_life(keys.before_arrival(arrival)))
    fold = BlameFold()
    for life in reversed(lives):
        there, arrival = fold, _arrival(life)
        fold = BlameFold(begins_empty=bool(life) and ends_life(life[0]))
        for record in life:
            if record is arrival:
                fold.continue_from(there)
            fold.add(record)
    return fold


def _last_life(records: Sequence[Record]) -> Sequence[Record]:
    """Returns the records of the last life.

    If there was an earlier life, the record that ended that life comes first. This record shows that there was no row
    when the last life began.
    """
    return records[max(life_begin(records) - 1, 0) :]


def _arrival(life: Sequence[Record]) -> Record | None:
    """Returns the record by which the row of a life moved here from another key, None if the row was created here."""
    return next(filter(is_arrival, reversed(life)), None)
