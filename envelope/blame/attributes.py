"""Defines the result of blame: the attributes of a row, and for each of them the change that set it."""

from dataclasses import dataclass
from datetime import datetime

from msgspec import Raw

from changelog.envelope.json_pointer import unescaped
from changelog.envelope.model import Missing, Op, Record, Stamp
from changelog.envelope.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The change that set a value.

    `stamp` is None if the writer is unknown, because the changelog does not have the change that set the value. Then
    the other fields describe the first change or read that shows the value.
    """

    stamp: Stamp | None
    op: Op
    position: Position
    transaction: str
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """One attribute of a row: a column, or an undivided part of a json column (a scalar, `{}` or `[]`).

    `pointer` is a JSON pointer (RFC 6901) into the row's state, such as `/address/street`. `value` is JSON text, or
    None if the database's log did not send the value (the value is *unavailable*). `before` is the JSON text that the
    same pointer had before the change of `writer`: MISSING if the pointer did not exist, None if the text is unknown.
    """

    pointer: str
    value: Raw | None
    before: Raw | Missing | None
    writer: Writer

    @property
    def existed(self) -> bool | None:
        """Whether the pointer existed before the change of `writer`; None if that is unknown."""
        return None if self.before is None else not isinstance(self.before, Missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A row, its last change, and its attributes in the order in which `current` has them.

    `current` is the row's state as JSON text. A value that the database's log left out is taken from an earlier change,
    if an earlier change has it. `current` is None if the row was deleted or truncated, moved to another key, or never
    existed. `last` is the last change of the row, or None if the row has no changes.
    """

    current: Raw | None
    last: Writer | None
    attributes: tuple[Attribute, ...]

    @property
    def services(self) -> tuple[str, ...]:
        """The names of the services that set the attributes, each once, in the order of the attributes."""
        stamps = (attribute.writer.stamp for attribute in self.attributes)
        return tuple(dict.fromkeys(stamp.service_name for stamp in stamps if stamp is not None))

    @property
    def unavailable(self) -> tuple[str, ...]:
        """The names of the columns that `current` lacks, because their values are unavailable."""
        return tuple(column_of(attribute.pointer) for attribute in self.attributes if attribute.value is None)


def column_of(pointer: str) -> str:
    """Returns the name of the column in which an attribute is: the first part of its pointer."""
    return unescaped(pointer.split("/", 2)[1])


def writer_of(record: Record) -> Writer:
    """Returns the writer that a record describes. A `read` shows values but did not write them, so it has no stamp."""
    provenance = record.envelope.provenance
    source = provenance.source
    return Writer(
        stamp=None if source.op is Op.READ else provenance.stamp,
        op=source.op,
        position=source.position,
        transaction=source.transaction,
        committed_at=source.committed_at,
    )
