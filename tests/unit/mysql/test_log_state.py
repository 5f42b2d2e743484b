"""Tests where in the log a service continues after it has stopped. It must not omit or repeat a transaction."""

from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.decode.log_state import LogState, LogTransaction
from changelog.connectors.sources.mysql.values.positions.gtid_position import GtidPosition
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.envelope.position import Position

SENT_BEFORE = GtidPosition.parse("0-1-4")


def state(received: str) -> LogState:
    return LogState(epoch=1, received=GtidPosition.parse(received), resume=SENT_BEFORE, database="shop")


def begin(log_state: LogState, number: int) -> LogTransaction:
    """Begins the transaction with this number. Its place in the log is ten times the number."""
    gtid = f"0-1-{number}"
    transaction = LogTransaction(gtid=gtid, commit=10 * number, committed_at=0, is_repeated=log_state.is_seen(gtid))
    log_state.begin(transaction)
    return transaction


def commit(log_state: LogState, number: int) -> None:
    log_state.end(begin(log_state, number))


def prepare(log_state: LogState, number: int, name: bytes) -> None:
    transaction = begin(log_state, number)
    log_state.hold(xa_id(name), transaction)
    assert log_state.holding is not None
    log_state.prepared.hold(*log_state.holding)
    log_state.end(transaction)


def commit_prepared(log_state: LogState, number: int, name: bytes) -> None:
    transaction = begin(log_state, number)
    assert log_state.complete(xa_id(name), transaction.commit) is not None
    log_state.end(transaction)


def xa_id(name: bytes) -> XaId:
    return XaId(format_id=1, gtrid=name, bqual=b"")


def places(log_state: LogState) -> tuple[str, str]:
    """Returns the delivered transactions, and those that the server need not send after a restart."""
    return log_state.gtids.text, log_state.resume.text


def test_a_service_that_stops_forgets_only_what_comes_after_the_stop() -> None:
    log_state = state("0-1-4")
    prepare(log_state, 5, b"early")
    commit(log_state, 6)
    log_state.end_block(None)
    commit(log_state, 7)
    prepare(log_state, 8, b"late")
    commit_prepared(log_state, 9, b"early")
    log_state.end_block(Position(1, 70, 0))
    assert places(log_state) == ("0-1-6", "0-1-4")


def test_a_service_that_stops_at_a_prepared_transaction_forgets_it() -> None:
    log_state = state("0-1-4")
    commit(log_state, 5)
    prepare(log_state, 6, b"late")
    log_state.end_block(Position(1, 60, 0))
    assert places(log_state) == ("0-1-5", "0-1-5")


def test_transactions_that_the_server_sends_again_still_count_as_delivered() -> None:
    log_state = state("0-1-9")
    prepare(log_state, 5, b"early")
    log_state.end_block(None)
    assert places(log_state) == ("0-1-9", "0-1-4")
    commit(log_state, 6)
    prepare(log_state, 7, b"late")
    for number in 8, 9, 10:
        commit(log_state, number)
    log_state.end_block(None)
    assert places(log_state) == ("0-1-10", "0-1-4")
    commit_prepared(log_state, 11, b"early")
    log_state.end_block(None)
    assert places(log_state) == ("0-1-11", "0-1-6")


def test_a_prepared_transaction_of_mysql_does_not_copy_the_set_of_gtids() -> None:
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    gtids = GtidSet.parse(f"{server}:1-4")
    log_state = LogState(epoch=1, received=gtids, resume=gtids, database="shop")
    for number in 5, 6:
        transaction = LogTransaction(gtid=f"{server}:{number}", commit=10 * number, committed_at=0, is_repeated=False)
        log_state.begin(transaction)
        if number == 5:
            log_state.hold(xa_id(b"early"), transaction)
            assert log_state.holding is not None
            assert log_state.holding[1].before is None
            log_state.prepared.hold(*log_state.holding)
        log_state.end(transaction)
    log_state.end_block(None)
    assert places(log_state) == (f"{server}:1-6", f"{server}:1-4:6")
