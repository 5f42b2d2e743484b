"""Draws random events of most kinds that servers write to a binary log. `table_encoder` draws tables for table maps."""

from hypothesis import strategies as st

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import (
    AlterPhase,
    AnonymousGtid,
    Event,
    FormatDescription,
    GtidList,
    Heartbeat,
    Incident,
    MariadbGtid,
    MysqlGtid,
    Operation,
    Other,
    PreviousGtids,
    Query,
    Rotate,
    RowsEvent,
    RowsQuery,
    ServerStop,
    StatementContext,
    Unsupported,
    XaId,
    XaPrepare,
    Xid,
)
from changelog.connectors.sources.mysql.decode.events.header import Header
from tests.unit.mysql.binlog_encoder import WITH_EXTRA_DATA, number

uint8, uint16, uint32, uint48, uint64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 48, 64))
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
short_bytes = st.binary(max_size=12)


def headers(
    *kinds: EventType, end_log_pos: st.SearchStrategy[int] = uint32, flags: st.SearchStrategy[int] = uint16
) -> st.SearchStrategy[Header]:
    """Draws headers of events of these types. The size in each header is 0."""
    return st.builds(
        Header,
        timestamp_s=uint32,
        type=st.sampled_from([kind.value for kind in kinds]),
        server_id=uint32,
        size=st.just(0),
        end_log_pos=end_log_pos,
        flags=flags,
    )


HEADER_SIZES = bytes({2: 13, 19: 8, 23: 8, 24: 8, 25: 8, 30: 10, 31: 10, 32: 10}.get(kind, 0) for kind in range(1, 43))

format_descriptions = st.builds(
    FormatDescription,
    header=headers(EventType.FORMAT_DESCRIPTION, flags=st.just(0)),
    server_version=st.sampled_from(["8.0.15", "9.7.4-2", "11.4.5-MariaDB-log"]),
    created_s=uint32,
    has_checksums=st.booleans(),
    header_sizes=st.just(HEADER_SIZES),
)

microseconds = st.integers(0, 2**55 - 1)
transaction_numbers = st.integers(1, 2**63 - 2)


@st.composite
def commit_fields(draw: st.DrawFn, *, complete: bool) -> dict[str, int | None]:
    """Draws the times of a commit, and the size of its transaction. If `complete` is false, some or all of these fields
    may be None, because older servers leave them out.
    """
    immediate = draw(microseconds if complete else st.none() | microseconds)
    if immediate is None:
        return dict.fromkeys(("immediate_commit_us", "original_commit_us", "transaction_bytes"))
    return {
        "immediate_commit_us": immediate,
        "original_commit_us": draw(st.just(immediate) | microseconds),
        "transaction_bytes": draw(uint64 if complete else st.none() | uint64),
    }


mysql_gtids = st.builds(
    lambda header, server_uuid, number, commit: MysqlGtid(
        header=header, server_uuid=server_uuid, number=number, **commit
    ),
    headers(EventType.GTID),
    st.uuids(),
    transaction_numbers,
    commit_fields(complete=False),
)
tagged_gtids = st.builds(
    lambda header, server_uuid, tag, number, commit: MysqlGtid(
        header=header, server_uuid=server_uuid, tag=tag, number=number, **commit
    ),
    headers(EventType.GTID_TAGGED),
    st.uuids(),
    st.text("abcdefghijklmnopqrstuvwxyz_0123456789", max_size=32),
    transaction_numbers,
    commit_fields(complete=True),
)
anonymous_gtids = st.builds(
    lambda header, commit: AnonymousGtid(header=header, **commit),
    headers(EventType.ANONYMOUS_GTID),
    commit_fields(complete=False),
)
xa_ids = st.builds(XaId, format_id=int32, gtrid=st.binary(max_size=64), bqual=st.binary(max_size=64))


@st.composite
def mariadb_gtids(draw: st.DrawFn) -> MariadbGtid:
    xa_prepare, xa_complete = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    alter = draw(st.none() | st.sampled_from(AlterPhase))
    return MariadbGtid(
        header=draw(headers(EventType.MARIADB_GTID)),
        domain_id=draw(uint32),
        sequence=draw(uint64),
        standalone=draw(st.booleans()),
        transactional=draw(st.booleans()),
        ddl=draw(st.booleans()),
        xa_prepare=xa_prepare,
        xa_complete=xa_complete,
        xa_id=draw(xa_ids) if xa_prepare or xa_complete else None,
        alter=alter,
        alter_start=draw(uint64) if alter in (AlterPhase.COMMIT, AlterPhase.ROLLBACK) else None,
        commit_id=draw(st.none() | uint64),
    )


ROW_TYPES = {
    Operation.INSERT: (EventType.WRITE_ROWS_V1, EventType.WRITE_ROWS, EventType.WRITE_ROWS_COMPRESSED_V1),
    Operation.UPDATE: (
        EventType.UPDATE_ROWS_V1,
        EventType.UPDATE_ROWS,
        EventType.PARTIAL_UPDATE_ROWS,
        EventType.UPDATE_ROWS_COMPRESSED_V1,
        EventType.UPDATE_ROWS_COMPRESSED,
    ),
    Operation.DELETE: (EventType.DELETE_ROWS_V1, EventType.DELETE_ROWS, EventType.DELETE_ROWS_COMPRESSED),
}


@st.composite
def rows_events(draw: st.DrawFn) -> RowsEvent:
    operation = draw(st.sampled_from(Operation))
    header = draw(headers(*ROW_TYPES[operation]))
    width = draw(st.integers(0, 20) | st.integers(240, 300))
    bitmaps = st.integers(0, 2**width - 1).map(lambda bitmap: bitmap.to_bytes((width + 7) // 8, "little"))
    before = None if operation is Operation.INSERT else draw(bitmaps)
    after = None if operation is Operation.DELETE else draw(bitmaps)
    return rows_event(header, operation, draw(uint48), draw(uint16), width, before, after, draw(short_bytes))


def rows_event(
    header: Header,
    operation: Operation,
    table_id: int,
    flags: int,
    width: int,
    before: bytes | None,
    after: bytes | None,
    body: bytes,
) -> RowsEvent:
    """Makes an event with rows. Computes the offset of its body from the other fields."""
    bitmaps = b"".join(bitmap for bitmap in (before, after) if bitmap is not None)
    fixed = 32 if header.type in WITH_EXTRA_DATA else 27
    return RowsEvent(
        header=header,
        table_id=table_id,
        operation=operation,
        flags=flags,
        width=width,
        before=before,
        after=after,
        partial=header.type == EventType.PARTIAL_UPDATE_ROWS,
        body=memoryview(body),
        offset=fixed + len(number(width)) + len(bitmaps),
    )


def named(
    cls: type[StatementContext] | type[Unsupported] | type[Other], *kinds: EventType
) -> st.SearchStrategy[StatementContext | Unsupported | Other]:
    return headers(*kinds).map(lambda header: cls(header=header, name=EventType(header.type).name))


positions = st.integers(4, 2**32 - 1)
near_heartbeats = st.builds(
    lambda header, file: Heartbeat(header=header, file=file, position=header.end_log_pos),
    headers(EventType.HEARTBEAT, end_log_pos=positions),
    texts,
)
far_heartbeats = st.builds(
    Heartbeat,
    header=headers(EventType.HEARTBEAT, end_log_pos=st.just(0)) | headers(EventType.HEARTBEAT_V2),
    file=texts,
    position=uint64,
)

closed_events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Xid, header=headers(EventType.XID), number=uint64),
    st.builds(XaPrepare, header=headers(EventType.XA_PREPARE), xa_id=xa_ids, one_phase=st.booleans()),
    st.builds(ServerStop, header=headers(EventType.STOP)),
    st.builds(Incident, header=headers(EventType.INCIDENT), number=uint16, message=short_bytes),
    st.builds(
        GtidList,
        header=headers(EventType.GTID_LIST),
        gtids=st.lists(st.tuples(uint32, uint32, uint64), max_size=4).map(tuple),
    ),
    st.builds(Heartbeat, header=headers(EventType.HEARTBEAT_V2), file=texts, position=uint64),
    tagged_gtids.filter(lambda gtid: gtid.original_commit_us == gtid.immediate_commit_us),
)
"""Events that become malformed if bytes are removed from their end, or added there."""

events: st.SearchStrategy[Event] = closed_events | st.one_of(
    st.builds(Rotate, header=headers(EventType.ROTATE), file=texts, position=uint64),
    st.builds(
        Query,
        header=headers(EventType.QUERY, EventType.QUERY_COMPRESSED),
        thread_id=uint32,
        error_code=uint16,
        database=texts,
        sql=short_bytes,
        sql_mode=st.none() | uint64,
        client_collation=st.none() | uint16,
        microseconds=st.none() | st.integers(0, 2**24 - 1),
    ),
    st.builds(RowsQuery, header=headers(EventType.ROWS_QUERY, EventType.ANNOTATE_ROWS), sql=short_bytes),
    st.builds(PreviousGtids, header=headers(EventType.PREVIOUS_GTIDS), encoded=st.binary(min_size=8, max_size=40)),
    near_heartbeats,
    far_heartbeats,
    mysql_gtids,
    mariadb_gtids(),
    tagged_gtids,
    anonymous_gtids,
    rows_events(),
    named(StatementContext, EventType.INTVAR, EventType.RAND, EventType.USER_VAR),
    named(Unsupported, EventType.EXECUTE_LOAD_QUERY, EventType.PRE_GA_WRITE_ROWS),
    named(Other, EventType.VIEW_CHANGE, EventType.BINLOG_CHECKPOINT, EventType.START_ENCRYPTION),
)
