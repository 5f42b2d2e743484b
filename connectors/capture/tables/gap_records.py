"""Makes the records that tell consumers of a gap in the changelog (see `changelog.envelope.gap`)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from changelog.envelope.entity import TRUNCATE_KEY, Entity
from changelog.envelope.model import Envelope, Op, Place, Record


def truncates(entities: Sequence[Entity], gap_record: Record) -> Iterator[Record]:
    """Yields truncate records for these entities, whose changelog has lost rows: one for each partition of each entity.

    Consumers may have read the lost rows, and nobody knows the keys of those rows. So consumers must drop all rows of
    these entities. An immutable entity whose policy is to ignore deletes has no truncate record, so consumers keep its
    rows.
    """
    provenance = gap_record.envelope.provenance
    for entity in entities:
        if entity.immutable and entity.on_change_of_immutable == "ignore":
            continue
        source = replace(provenance.source, op=Op.TRUNCATE, table=".".join(entity.table))
        envelope = Envelope(provenance=replace(provenance, source=source), current=None, original=None)
        for number in range(entity.partitions):
            yield Record(entity=entity.name, place=Place(key=TRUNCATE_KEY, partition=number), envelope=envelope)
