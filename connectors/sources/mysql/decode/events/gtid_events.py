"""Decodes the events that begin a transaction and have its id.

Sources: MySQL's `control_events.h`, class `Gtid_event`, and the page "MySQL Serialization Library" of its source
documentation; MariaDB's `log_event.h`, class `Gtid_log_event`.
"""

from dataclasses import dataclass
from uuid import UUID

from changelog.connectors.sources.mysql.decode.events.control_events import xa_id, zeros_to_the_end
from changelog.connectors.sources.mysql.decode.events.cursor import Cursor
from changelog.connectors.sources.mysql.decode.events.events import AlterPhase, AnonymousGtid, MariadbGtid, MysqlGtid
from changelog.connectors.sources.mysql.decode.events.header import Header

_UUID_BYTES = 16
_LOGICAL_CLOCK = 2
_CLOCK_BYTES = 16
_TIMESTAMP_BYTES = 7
_TWO_TIMESTAMPS = 1 << 55
_TWO_VERSIONS = 1 << 31
_NUMBER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Commit:
    """When a transaction was committed, and its size. A member is None if the server does not write it."""

    original_commit_us: int | None = None
    immediate_commit_us: int | None = None
    transaction_bytes: int | None = None


def mysql_gtid(cursor: Cursor, header: Header) -> MysqlGtid:
    """Decodes a GTID event of MySQL. Ids with a tag are in GTID_TAGGED events instead."""
    server_uuid, number = _identity(cursor)
    if not 0 < number < _NUMBER_MAX:
        raise cursor.malformed(f"the transaction number {number}", cursor.at - 8)
    commit = _commit(cursor)
    return MysqlGtid(
        header=header,
        server_uuid=server_uuid,
        number=number,
        original_commit_us=commit.original_commit_us,
        immediate_commit_us=commit.immediate_commit_us,
        transaction_bytes=commit.transaction_bytes,
    )


def anonymous_gtid(cursor: Cursor, header: Header) -> AnonymousGtid:
    """Decodes an ANONYMOUS_GTID of MySQL."""
    _identity(cursor)
    commit = _commit(cursor)
    return AnonymousGtid(
        header=header,
        original_commit_us=commit.original_commit_us,
        immediate_commit_us=commit.immediate_commit_us,
        transaction_bytes=commit.transaction_bytes,
    )


def _identity(cursor: Cursor) -> tuple[UUID, int]:
    cursor.skip(1)
    return UUID(bytes=cursor.take(_UUID_BYTES)), cursor.signed(8)


def _commit(cursor: Cursor) -> _Commit:
    """Reads the fields after the id. Newer servers write more fields, so the event may end after any group of them."""
    if not cursor.left:
        return _Commit()
    clock = cursor.number(1)
    if clock != _LOGICAL_CLOCK:
        raise cursor.malformed(f"the unknown logical clock {clock}", cursor.at - 1)
    cursor.skip(_CLOCK_BYTES)
    if not cursor.left:
        return _Commit()
    immediate = original = cursor.number(_TIMESTAMP_BYTES)
    if immediate & _TWO_TIMESTAMPS:
        immediate ^= _TWO_TIMESTAMPS
        original = cursor.number(_TIMESTAMP_BYTES)
    size = cursor.length() if cursor.left else None
    if cursor.left and cursor.number(4) & _TWO_VERSIONS:
        cursor.skip(4)
    if cursor.left:
        cursor.skip(8)  # the ticket: a number that transactions have in common if they are committed together
    return _Commit(original_commit_us=original, immediate_commit_us=immediate, transaction_bytes=size)


_UUID, _NUMBER, _TAG, _IMMEDIATE, _ORIGINAL, _SIZE = 1, 2, 3, 6, 7, 8
_LAST_KNOWN_FIELD = 11


def tagged_gtid(cursor: Cursor, header: Header) -> MysqlGtid:
    """Decodes a GTID_TAGGED, which MySQL writes from 8.3 on.

    Its fields are numbered and in ascending order, and some may be missing. Fields with higher numbers than we know are
    skipped, unless the event says that they must not be ignored.
    """
    begin = cursor.at
    version = packed(cursor)
    if version != 1:
        raise cursor.malformed(f"the version {version} of a serialized event, not 1", begin)
    size = packed(cursor)
    if size != cursor.end - begin:
        raise cursor.malformed(f"a tagged GTID of {cursor.end - begin} bytes whose size field says {size}", begin)
    if packed(cursor) > _LAST_KNOWN_FIELD + 1:
        raise cursor.malformed("a tagged GTID with an unknown field that must not be ignored", begin)
    numbers, texts = _serialized_fields(cursor)
    if not {_NUMBER, _IMMEDIATE, _SIZE} <= numbers.keys() or not {_UUID, _TAG} <= texts.keys():
        raise cursor.malformed("a tagged GTID without all necessary fields", begin)
    number = numbers[_NUMBER] >> 1 ^ -(numbers[_NUMBER] & 1)  # the lowest bit is the sign
    if not 0 < number < _NUMBER_MAX:
        raise cursor.malformed(f"the transaction number {number}", begin)
    return MysqlGtid(
        header=header,
        server_uuid=UUID(bytes=texts[_UUID]),
        tag=_tag(cursor, texts[_TAG]),
        number=number,
        original_commit_us=numbers.get(_ORIGINAL, numbers[_IMMEDIATE]),
        immediate_commit_us=numbers[_IMMEDIATE],
        transaction_bytes=numbers[_SIZE],
    )


def _serialized_fields(cursor: Cursor) -> tuple[dict[int, int], dict[int, bytes]]:
    """Reads all known fields. Returns the numeric fields and the fields with bytes, both by the field's number."""
    numbers: dict[int, int] = {}
    texts: dict[int, bytes] = {}
    last = -1
    while cursor.left:
        begin = cursor.at
        field = packed(cursor)
        if field <= last:
            raise cursor.malformed(f"the field {field} after the field {last}", begin)
        last = field
        if field > _LAST_KNOWN_FIELD:
            cursor.skip(cursor.left)
        elif field == _UUID:
            texts[field] = bytes(_byte(cursor) for _ in range(_UUID_BYTES))
        elif field == _TAG:
            texts[field] = cursor.take(packed(cursor))
        else:
            numbers[field] = packed(cursor)
    return numbers, texts


def packed(cursor: Cursor) -> int:
    """Reads a number of 1 to 9 bytes. In binary, the first byte ends with a 1 for each further byte."""
    first = cursor.number(1)
    count = (first ^ 0xFF) & -(first ^ 0xFF)
    count = 8 if not count else count.bit_length() - 1
    if count == 8:
        return cursor.number(8)
    return first >> count + 1 | cursor.number(count) << 7 - count


def _byte(cursor: Cursor) -> int:
    begin = cursor.at
    value = packed(cursor)
    if value > 0xFF:
        raise cursor.malformed(f"the byte {value}", begin)
    return value


def _tag(cursor: Cursor, tag: bytes) -> str:
    if len(tag) > 32 or not all(byte in _TAG_CHARACTERS for byte in tag):
        raise cursor.malformed("a tag that no server accepts")
    return tag.decode("ascii")


_TAG_CHARACTERS = b"abcdefghijklmnopqrstuvwxyz0123456789_"

_STANDALONE, _GROUP_COMMIT, _TRANSACTIONAL, _DDL, _PREPARED_XA, _COMPLETED_XA = 1, 2, 4, 32, 64, 128
_MULTI_ENGINE, _START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER, _THREAD_ID = 1, 2, 4, 8, 16
_ALTER_PHASES = {
    _START_ALTER: AlterPhase.START,
    _COMMIT_ALTER: AlterPhase.COMMIT,
    _ROLLBACK_ALTER: AlterPhase.ROLLBACK,
}
_SECOND_PHASES = _COMMIT_ALTER | _ROLLBACK_ALTER


def mariadb_gtid(cursor: Cursor, header: Header) -> MariadbGtid:
    """Decodes a GTID event of MariaDB. The server pads a short event with zero bytes."""
    sequence, domain_id, flags = cursor.number(8), cursor.number(4), cursor.number(1)
    commit_id = cursor.number(8) if flags & _GROUP_COMMIT else None
    xa = xa_id(cursor, cursor.signed(4), size_bytes=1) if flags & (_PREPARED_XA | _COMPLETED_XA) else None
    alter, alter_start = _extra_flags(cursor)
    zeros_to_the_end(cursor)
    return MariadbGtid(
        header=header,
        domain_id=domain_id,
        sequence=sequence,
        standalone=bool(flags & _STANDALONE),
        transactional=bool(flags & _TRANSACTIONAL),
        ddl=bool(flags & _DDL),
        xa_prepare=bool(flags & _PREPARED_XA),
        xa_complete=bool(flags & _COMPLETED_XA),
        xa_id=xa,
        alter=alter,
        alter_start=alter_start,
        commit_id=commit_id,
    )


def _extra_flags(cursor: Cursor) -> tuple[AlterPhase | None, int | None]:
    """Reads the second byte of flags, and the fields that these flags announce.

    Returns `alter` and `alter_start` of `MariadbGtid`.
    """
    begin = cursor.at
    flags = cursor.number(1) if cursor.left else 0
    if flags & _MULTI_ENGINE:
        cursor.skip(1)  # how many engines
    alter_flags = flags & (_START_ALTER | _SECOND_PHASES)
    if alter_flags and alter_flags not in _ALTER_PHASES:
        raise cursor.malformed(f"the flags {flags:#x} of a GTID", begin)
    alter_start = cursor.number(8) if flags & _SECOND_PHASES else None
    if flags & _THREAD_ID:
        cursor.skip(4)
    return _ALTER_PHASES.get(alter_flags), alter_start
