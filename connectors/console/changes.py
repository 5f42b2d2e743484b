"""Describes changes for a page: what changed, when, and who did it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from msgspec import Raw

from changelog.connectors import show
from changelog.connectors.console.addresses import row_address, with_query
from changelog.connectors.console.palette import Palette
from changelog.connectors.console.values import Value, pair, value
from changelog.envelope.blame.leaves import leaves, pointer_of
from changelog.envelope.entity import GAPS, TRUNCATE_KEY
from changelog.envelope.json_pointer import unescaped
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Place, Record

ATTRIBUTES_MAX = 60
"""The maximum number of attributes that a page shows for a change. The page says how many more there are."""

CONTEXT_MAX = 12
"""A page shows at most this many members of a stamp's context."""

_CONTAINERS = ("{", "[")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeChange:
    """One attribute that a change touched, before and after the change.

    `pointer` is its JSON pointer (RFC 6901), and `path` says the same in a form for people. A value inside nested JSON
    is an attribute of its own.
    """

    pointer: str
    path: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextMember:
    """One member of a stamp's context: one of the details that the application gives of a change."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherAddress:
    """Where a row moved to or came from: the other key, its partition, and the address of the page of that key."""

    key: str
    partition: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedChange:
    """A change of a row, as a page shows it.

    `stamped_by` says who wrote the stamp: `application`, `session` (the database's trigger) or `none` (nobody).
    `colour` is the CSS class of the service's colour. `attributes` has at most `ATTRIBUTES_MAX` attributes, and `more`
    says how many others changed. If `is_original_known` is False, the changelog does not have the row before the
    change, so `attributes` are those of the row after it. `is_read` says that the row was read from its table; then
    nobody knows who wrote the row.
    """

    entity: str
    key: str
    address: str
    op: str
    verb: str
    position: str
    transaction: str
    committed_at: datetime
    service: str
    version: str
    identifier: str
    stamped_by: str
    colour: str
    context: Sequence[ContextMember]
    attributes: Sequence[AttributeChange]
    more: int
    unavailable: Sequence[str]
    is_original_known: bool
    is_read: bool
    moved_to: OtherAddress | None
    moved_from: OtherAddress | None

    @property
    def by(self) -> str:
        """The address of the page that says what else was written under this identifier."""
        return with_query("/who", identifier=self.identifier)

    @property
    def of_all_rows(self) -> bool:
        """Whether the change is a truncate. It concerns all rows, so pages link it to its entity and not to a row."""
        return self.key == TRUNCATE_KEY


def change(record: Record, palette: Palette, page_colours: Mapping[str, str] | None = None) -> DescribedChange:
    """Returns the description of a change. Colours of services in `page_colours` override those of `palette`."""
    envelope, source = record.envelope, record.envelope.provenance.source
    stamp = envelope.provenance.stamp
    attributes = list(islice(_touched(envelope), ATTRIBUTES_MAX))
    more = 0 if len(attributes) < ATTRIBUTES_MAX else sum(1 for _ in _touched(envelope)) - ATTRIBUTES_MAX
    return DescribedChange(
        entity=record.entity,
        key=record.place.key,
        address=row_address(record.entity, record.place.key),
        op=str(source.op),
        verb=_verb(record),
        position=str(source.position),
        transaction=source.transaction,
        committed_at=source.committed_at,
        service=stamp.service_name,
        version=show.version_of(stamp),
        identifier=stamp.identifier,
        stamped_by=str(palette.kind(record.entity, stamp)),
        colour=(page_colours or {}).get(stamp.service_name) or palette.colour(record.entity, stamp),
        context=list(_context(stamp.context)),
        attributes=[_shown(*item) for item in attributes],
        more=more,
        unavailable=source.unavailable[:ATTRIBUTES_MAX],
        is_original_known=not _lacks_original(envelope),
        is_read=source.op is Op.READ,
        moved_to=_move(record.entity, record.moved_to),
        moved_from=_move(record.entity, record.moved_from),
    )


def anchor(position: str) -> str:
    """Returns the text after `#` in an address that leads to a change on its page."""
    return f"at-{position.replace('/', '-')}"


def path_of(pointer: str) -> str:
    """Returns a JSON pointer in a form for people: `/address/street` as `address.street`."""
    return ".".join(map(unescaped, pointer.split("/")[1:]))


_Touched = tuple[str, str | Missing, str | Missing]
"""The pointer of an attribute, and its JSON text before and after a change."""


def _touched(envelope: Envelope) -> Iterator[_Touched]:
    """Yields the attributes that a change touched; all attributes of the new row if the earlier row is not known."""
    if _lacks_original(envelope):
        for name, text in show.json_texts(envelope.current).items():
            yield pointer_of(name), MISSING, text
        return
    for item in show.changes(envelope):
        pointer, before, after = pointer_of(item.name), item.before, item.after
        if _is_container(before) and _is_container(after):
            yield from _inside(pointer, before, after)
        else:
            yield pointer, before, after


def _inside(pointer: str, before: str | Missing, after: str | Missing) -> Iterator[_Touched]:
    """Yields the values inside nested JSON that differ."""
    old, new = _leaves(pointer, before), _leaves(pointer, after)
    for name in {**new, **old}:
        if old.get(name) != new.get(name):
            yield name, _decoded(old.get(name)), _decoded(new.get(name))


def _is_container(content: str | Missing) -> bool:
    return isinstance(content, str) and content.startswith(_CONTAINERS)


def _leaves(pointer: str, content: str | Missing) -> dict[str, bytes]:
    return {} if isinstance(content, Missing) else leaves(pointer, content.encode())


def _decoded(token: bytes | None) -> str | Missing:
    return MISSING if token is None else token.decode()


def _shown(pointer: str, before: str | Missing, after: str | Missing) -> AttributeChange:
    shown_before, shown_after = pair(before, after)
    return AttributeChange(pointer=pointer, path=path_of(pointer), before=shown_before, after=shown_after)


def _lacks_original(envelope: Envelope) -> bool:
    return envelope.provenance.source.op is Op.UPDATE and envelope.original is MISSING


def _context(context: str | None) -> Iterator[ContextMember]:
    shown = {} if context is None else show.json_texts(Raw(context))
    for name, text in islice(shown.items(), CONTEXT_MAX):
        yield ContextMember(name=name, value=value(text))


def _verb(record: Record) -> str:
    op = record.envelope.provenance.source.op
    if record.entity == GAPS and op is Op.CREATE:
        return "changes were lost"
    if record.moved_to is not None:
        return "moved away"
    if record.moved_from is not None:
        return "moved here"
    return "read from the table" if op is Op.READ else show.MARKS[op][1]


def _move(entity: str, place: Place | None) -> OtherAddress | None:
    if place is None:
        return None
    return OtherAddress(key=place.key, partition=place.partition, address=row_address(entity, place.key))
