"""Tests how errors of the server become `ChangelogError`s.

A `ChangelogError` has one line and shows no values of rows. Its kind decides how the service reacts.
"""

import pymysql
import pytest

from changelog.connectors.sources.mysql.session.server_errors import explain, rejection
from changelog.envelope.errors import Kind

SAME = "A slave with the same server_uuid/server_id as this slave has connected to the master; the first event '' at 4"
PURGED = "Cannot replicate because the master purged required binary logs. Replicate the missing transactions"
TOO_OLD = "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old"
AHEAD = "Error: connecting slave requested to start from GTID 0-1-999, which is not in the master's binlog"


@pytest.mark.parametrize(
    ("number", "message", "kind", "hint"),
    [
        (1236, SAME, Kind.IN_USE, "server_id"),
        (1236, PURGED, Kind.GAP, "--over-gap"),
        (1236, TOO_OLD, Kind.GAP, "--over-gap"),
        (1236, AHEAD, Kind.DIVERGED, "--over-gap"),
        (1236, "log event entry exceeded max_allowed_packet", Kind.PRECONDITION, None),
        (1045, "Access denied for user 'a'@'b'", Kind.ACCESS, "password"),
        (1142, "SELECT command denied to user 'a'@'b' for table 't'", Kind.ACCESS, "--grants"),
        (2013, "Lost connection to MySQL server during query", Kind.CONNECTION, None),
        (1205, "Lock wait timeout exceeded", Kind.CONNECTION, None),
        (1969, "Query execution was interrupted (max_statement_time exceeded)", Kind.CONNECTION, None),
        (3024, "maximum statement execution time exceeded", Kind.CONNECTION, None),
        (1412, "Table definition has changed", Kind.ALTERED, None),
        (1064, "You have an error in your SQL syntax", Kind.USAGE, None),
        (9999, "something new", Kind.PRECONDITION, None),
    ],
)
def test_each_error_has_a_kind_and_a_hint(number: int, message: str, kind: Kind, hint: str | None) -> None:
    error = explain(number, message, "reading a table")
    assert error.kind is kind
    assert str(error).startswith("reading a table: ")
    assert "\n" not in str(error)
    assert (error.hint is None) if hint is None else (hint in str(error.hint))


def test_an_error_does_not_show_values_of_rows() -> None:
    error = explain(1292, "Incorrect datetime value: 'Ada Lovelace' for column 'born'", "reading a table")
    assert error.message == "reading a table: error 1292"


def test_a_connection_that_is_lost_during_the_tls_handshake_is_tried_again() -> None:
    gone = "MySQL server has gone away (SSLEOFError(8, 'EOF occurred in violation of protocol (_ssl.c:2427)'))"
    assert rejection(pymysql.OperationalError(2006, gone), encrypted=True).kind is Kind.CONNECTION
    untrusted = "Can't connect to MySQL server on 'db' ([SSL: CERTIFICATE_VERIFY_FAILED])"
    assert rejection(pymysql.OperationalError(2003, untrusted), encrypted=True).kind is Kind.ACCESS
