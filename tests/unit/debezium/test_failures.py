"""Tests the errors that report how the Debezium process ended. Each error must be one line, and most say what to do."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from changelog.connectors.debezium.failures import failure
from changelog.connectors.debezium.frames import Cause, End
from changelog.connectors.debezium.launch import Launch
from changelog.envelope.errors import ChangelogError, Kind

LAUNCH = Launch(properties={"connector.class": "io.debezium.Nothing"}, jars=Path("/jars"))


def of_engine(*causes: tuple[str, str], logged: Sequence[str] = ()) -> ChangelogError:
    raised = [msgspec.convert({"class": name, "message": message}, Cause) for name, message in causes]
    return failure(LAUNCH, End(success=False, message=causes[0][1], causes=tuple(raised)), 1, [], logged)


INVALID = "Connector configuration is not valid. "
WRAPPER = "io.debezium.DebeziumException"
UNLOADED = "java.lang.ClassNotFoundException"


@pytest.mark.parametrize(
    ("causes", "kind", "text"),
    [
        ([(WRAPPER, f"{INVALID}The 'a.b' value is invalid")], Kind.USAGE, "Debezium: The 'a.b' value is invalid"),
        ([(WRAPPER, f"{INVALID}FATAL: password authentication failed")], Kind.ACCESS, "Debezium: FATAL: password auth"),
        (
            [
                ("x.ConnectException", "An exception occurred in the change event"),
                ("java.io.EOFException", ""),
            ],
            Kind.CONNECTION,
            "Debezium: EOFException",
        ),
        (
            [(WRAPPER, "x"), ("y.PSQLException", "Writing to the server failed"), ("y.SocketException", "Broken pipe")],
            Kind.CONNECTION,
            "Debezium: Writing to the server failed: Broken pipe",
        ),
        ([(WRAPPER, "The log is no longer available on the server.")], Kind.GAP, "so the tables have to be read again"),
        (
            [(WRAPPER, "x"), (UNLOADED, "io.debezium.Nothing")],
            Kind.PRECONDITION,
            "the connector class io.debezium.Nothing is not in the jars in /jars; `changelog debezium install",
        ),
        (
            [("java.lang.NoClassDefFoundError", "com/example/Driver")],
            Kind.PRECONDITION,
            "the class com.example.Driver is not in the jars in /jars; all jars of Debezium must have one",
        ),
        ([("java.lang.IllegalStateException", "odd")], Kind.PRECONDITION, "Debezium: odd"),
        (
            [(WRAPPER, "Cannot read the table"), ("java.sql.SQLException", "no such table")],
            Kind.PRECONDITION,
            "Debezium: Cannot read the table: no such table",
        ),
    ],
)
def test_the_error_of_the_engine_is_explained(causes: list[tuple[str, str]], kind: Kind, text: str) -> None:
    error = of_engine(*causes)
    assert (text in str(error), error.kind) == (True, kind), str(error)


def test_a_cause_that_debezium_only_logs_is_part_of_the_error() -> None:
    message = f"{INVALID}Error during validation: io.debezium.DebeziumException: Failed:"
    error = of_engine((WRAPPER, message), logged=["ConnectException: Connection refused"])
    assert error.kind is Kind.CONNECTION
    cause = "DebeziumException: Failed: ConnectException: Connection refused"
    assert error.message == f"Debezium: Error during validation: {cause}"


def test_an_error_of_sql_server_without_a_cause_is_an_error_of_the_connection() -> None:
    driver = 'The TCP/IP connection to the host 127.0.0.1, port 30108 has failed. Error: "null. Verify the properties."'
    error = of_engine((WRAPPER, f"{INVALID}Unable to connect. Check this and other connection properties. {driver}"))
    assert error.kind is Kind.CONNECTION


@pytest.mark.parametrize(
    ("code", "errors", "kind", "text"),
    [
        (-9, [], Kind.CONNECTION, "the Debezium process was killed (SIGKILL)"),
        (-15, [], Kind.CONNECTION, "the Debezium process was killed (SIGTERM)"),
        (3, ["Terminating due to java.lang.OutOfMemoryError: Java heap space"], Kind.LIMIT, "its heap of 512 MiB"),
        (1, ["Error occurred during initialization of VM", "Too small"], Kind.PRECONDITION, "exit code 1: Too small"),
        (1, [], Kind.PRECONDITION, "exit code 1: it printed nothing"),
    ],
)
def test_the_end_of_a_process_without_a_message_is_explained(
    code: int, errors: list[str], kind: Kind, text: str
) -> None:
    error = failure(LAUNCH, None, code, errors, [])
    assert (text in str(error), error.kind) == (True, kind), str(error)
