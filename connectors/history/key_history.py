"""Returns the changes of one key. If a row moved to the key, also returns the row's changes under its earlier keys."""

from collections.abc import Sequence

from changelog.connectors.history.key_records import KeyRecords, is_arrival, life_begin
from changelog.connectors.history.moments import Moment, is_since, is_until
from changelog.connectors.history.refusals import no_change
from changelog.connectors.sinks import Log
from changelog.envelope.model import Record, position_of
from changelog.envelope.position import Position


def key_history(
    log: Log, entity: str, key: str, *, since: Moment | None = None, until: Moment | None = None
) -> list[Record]:
    """Returns the changes of a key in the order of their positions, from `since` to `until`, both included.

    `key` is the canonical text of the key (`changelog.envelope.key.key_text`). The result has three kinds of records:
    - The records of the key.
    - Truncates of the entity that deleted the row of the key. Their key is `changelog.envelope.entity.TRUNCATE_KEY`.
    - The changes of a row before it moved to the key from another key. They have that other key. At most
      `changelog.connectors.history.key_records.KEYS_MAX` other keys are read.

    Raises ChangelogError: USAGE if the changelog has no change of the key, and the errors of `Log.read_key`.
    """
    keys = KeyRecords(log, entity)
    records = keys.of(key)
    if not records:
        raise no_change(log, entity, key)
    everything = sorted([*records, *_before_arrivals(keys, records)], key=position_of)
    return [
        record
        for record in everything
        if (since is None or is_since(record, since)) and (until is None or is_until(record, until))
    ]


def _before_arrivals(keys: KeyRecords, records: Sequence[Record]) -> list[Record]:
    """Returns, for each row that moved to a key, its records under the keys that it had before.

    A row may come back to a key that it had before, so records that are already in the result are left out.
    """
    addresses = {_address(record) for record in records}
    arrivals = [record for record in records if is_arrival(record)]
    earlier: list[Record] = []
    while arrivals:
        there = keys.before_arrival(arrivals.pop())
        new = [record for record in there[life_begin(there) :] if _address(record) not in addresses]
        addresses.update(map(_address, new))
        earlier += new
        arrivals += filter(is_arrival, new)
    return earlier


def _address(record: Record) -> tuple[str, Position]:
    return record.place.key, position_of(record)
