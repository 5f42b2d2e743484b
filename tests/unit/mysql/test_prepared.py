"""Tests what is held of prepared XA transactions, and how much memory their rows may take."""

import pytest

from changelog.connectors.sources.mysql.decode.events.event_types import EventType
from changelog.connectors.sources.mysql.decode.events.events import Operation, RowsEvent, XaId
from changelog.connectors.sources.mysql.decode.prepared import HeldTransaction, PreparedTransactions, Signed
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Stamp
from tests.unit.mysql.reading import header


def xa_id(name: bytes) -> XaId:
    return XaId(format_id=1, gtrid=name, bqual=b"")


def held(nbytes: int) -> HeldTransaction:
    return HeldTransaction(gtid="", commit=1, before=GtidSet(intervals={}), nbytes=nbytes)


def test_prepared_transactions_that_take_too_much_memory_are_refused() -> None:
    prepared = PreparedTransactions(bytes_max=3 << 20)
    prepared.hold(xa_id(b"a"), held(2 << 20))
    prepared.check(xa_id(b"a"), held(3 << 20))  # it is sent again, so the rows that were sent before do not count
    prepared.check(xa_id(b"b"), held(1 << 20))
    with pytest.raises(ChangelogError, match="take more than 3 MiB") as caught:
        prepared.check(xa_id(b"b"), held((1 << 20) + 1))
    assert caught.value.kind is Kind.LIMIT
    assert "--over-gap" in str(caught.value)


def test_a_transaction_that_ended_takes_no_memory() -> None:
    prepared = PreparedTransactions(bytes_max=3)
    for name in (b"a", b"b"):
        prepared.hold(xa_id(name), held(2))
        prepared.hold(xa_id(name), held(3))
        assert prepared.take(xa_id(name)) is not None
    assert not prepared
    prepared.check(xa_id(b"c"), held(3))


def test_compressed_rows_count_with_their_uncompressed_size() -> None:
    transaction = held(0)
    for size, body in (40, 10), (40, 1000):
        transaction.add(
            RowsEvent(
                header=header(EventType.WRITE_ROWS_COMPRESSED_V1)._replace(size=size),
                table_id=1,
                operation=Operation.INSERT,
                flags=1,
                width=1,
                before=None,
                after=b"\x01",
                partial=False,
                body=bytes(body),
                offset=0,
            )
        )
    assert transaction.nbytes == 1040
    assert len(transaction.events) == 2


def test_a_repeated_stamp_is_stored_once() -> None:
    stamp = Stamp(service_name="till", api_version="", identifier="")
    transaction = held(0)
    for next_stamp in (None, stamp, stamp, None, None):
        transaction.sign(next_stamp)
    assert transaction.events == [Signed(stamp=stamp), Signed(stamp=None)]
