"""Checks the blame of rows: which change set each of their values. The expected answers come from a search through all
versions of all rows.
"""

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.sinks.files.log import FileLog
from changelog.envelope.blame import Blame
from changelog.envelope.columnar import batch
from changelog.envelope.entity import OF_CHANGELOG
from changelog.envelope.model import Op, Record, position_of
from tests.unit.blame.search import Version, sorted_text, true_blame, versions_in
from tests.unit.blame.world import folded

KEYS = 5
"""For this many keys of each entity, the check also compares the result of `key_blame`. These are the keys with the
most versions.
"""


def check_blame(log: FileLog) -> int:
    """Checks every attribute of every row of every entity. Returns how many attributes it has checked.

    Leaves out rows that nobody has changed since the service read them from the table. There are very many such rows,
    and it is unknown who set their values.
    """
    attribute_count = 0
    for entity in log.counts().keys() - OF_CHANGELOG:
        records = _records(log, entity)
        versions = versions_in(records)
        blames = folded(records)
        for key, blame in blames.items():
            _check_row(records, versions[key], blame)
            attribute_count += len(blame.attributes)
        for key in sorted(blames, key=lambda key: len(versions[key]))[-KEYS:]:
            assert key_blame(log, entity, key) == blames[key]
    return attribute_count


def _records(log: FileLog, entity: str) -> list[Record]:
    rows = pa.Table.from_batches(log.read(entity=entity))
    changes = rows.filter(pc.not_equal(rows.column("op"), Op.READ.value))
    of_changed_rows = rows.filter(pc.is_in(rows.column("key"), changes.column("key").unique()))
    return [record for part in of_changed_rows.to_batches() for record in batch.records(part)]


def _check_row(records: list[Record], versions: list[Version], blame: Blame) -> None:
    attributes = true_blame(versions)
    assert {attribute.pointer for attribute in blame.attributes} == attributes.keys()
    for attribute in blame.attributes:
        true_attribute = attributes[attribute.pointer]
        change = records[true_attribute.change]
        assert attribute.writer.position == position_of(change), attribute.pointer
        assert attribute.writer.stamp == (change.envelope.provenance.stamp if true_attribute.is_made else None)
        assert sorted_text(attribute.value) == true_attribute.value
        if attribute.before is None:  # the earlier value is unknown
            assert not true_attribute.is_made
        else:
            assert sorted_text(attribute.before) == true_attribute.before
