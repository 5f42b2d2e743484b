"""Computes in plain Python the tables that the job `blame` must write. One table holds the change that set each
attribute of each row. The other counts the changes of each service.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from changelog.envelope.blame import Attribute, BlameFold
from changelog.envelope.model import MISSING, Missing, Op, Record, Stamp, position_of
from changelog.envelope.position import Position
from changelog.envelope.stamp import kind_of

DEFAULT = Stamp(api_version="", service_name="admin", identifier="")
"""The default stamp of the configuration in the tests."""

Attributes = dict[tuple[str, str, str], dict[str, Any]]
"""The rows of the table `attributes`, by entity, key and path."""


def attributes_of(records: Iterable[Record], until: Position) -> Attributes:
    """Applies the changes up to and including `until`, key by key. Returns the attributes of all keys."""
    folds: dict[tuple[str, str], BlameFold] = {}
    for record in changes_of(records, until):
        entity, key = record.entity, record.place.key
        if record.envelope.provenance.source.op is Op.TRUNCATE:
            for (fold_entity, _), fold in folds.items():
                if fold_entity == entity:
                    fold.add(record)
            continue
        fold = folds.setdefault((entity, key), BlameFold())
        if record.moved_from is not None:
            fold.continue_from(folds.get((entity, record.moved_from.key), BlameFold()))
        fold.add(record)
    return {
        (*address, attribute.pointer): row_of(attribute)
        for address, fold in folds.items()
        for attribute in fold.result().attributes
    }


def changes_of(records: Iterable[Record], until: Position) -> list[Record]:
    """Returns the records up to a position, sorted by position. A repeated record counts once. So does a truncate,
    although it has a record in each partition.
    """
    once = {(record.entity, position_of(record)): record for record in records if position_of(record) <= until}
    return sorted(once.values(), key=position_of)


def coverage_of(records: Iterable[Record], until: Position) -> Counter[tuple[Any, ...]]:
    """Counts changes by entity, day, service and kind of stamp. A move has two records, but counts once. A read does
    not count.
    """
    changes = [record for record in changes_of(records, until) if record.moved_from is None]
    counts: Counter[tuple[Any, ...]] = Counter()
    for record in changes:
        stamp, source = record.envelope.provenance.stamp, record.envelope.provenance.source
        if source.op is not Op.READ:
            kind = kind_of(stamp, DEFAULT).value
            counts[record.entity, source.committed_at.date(), stamp.service_name, kind] += 1
    return counts


def row_of(attribute: Attribute) -> dict[str, Any]:
    """Returns an attribute as a row of the table, without entity, key and path."""
    before, writer, stamp = attribute.before, attribute.writer, attribute.writer.stamp
    return {
        "value": None if attribute.value is None else bytes(attribute.value).decode(),
        "before": None if isinstance(before, Missing | None) else bytes(before).decode(),
        "existed_before": None if before is None else before is not MISSING,
        "stamp": "unknown" if stamp is None else kind_of(stamp, DEFAULT).value,
        "service_name": stamp and stamp.service_name,
        "api_version": stamp and stamp.api_version,
        "identifier": stamp and stamp.identifier,
        "context": stamp and stamp.context,
        "op": writer.op.value,
        "position": str(writer.position),
        "transaction": writer.transaction,
        "committed_at": writer.committed_at,
    }
