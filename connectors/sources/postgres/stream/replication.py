"""Implements a replication connection over libpq.

psycopg has no replication API, so this file implements the protocol: COPY BOTH, its messages and its end.
Source: PostgreSQL's documentation, "Streaming Replication Protocol".
"""

import select
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import psycopg
from psycopg import generators, pq

from changelog.connectors.patience import Patience, PatientConnection
from changelog.connectors.sources.postgres.session.connection import connect, explain, translated
from changelog.connectors.sources.postgres.session.quoting import identifier, literal
from changelog.connectors.sources.postgres.session.sessions import COLUMNS, ServerSession
from changelog.connectors.sources.postgres.stream.trimming import trimmed
from changelog.connectors.sources.postgres.values.lsn import lsn_text, parse_lsn
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

_STATUS = struct.Struct("!cQQQq?")
_POSTGRES_EPOCH_S = 946_684_800  # 2000-01-01
_DRAIN_S = 2.0
_CREATION_CHECK_S = 2.0
_UNDEFINED = b"42704"  # up to version 17, a missing publication ends the stream with this error
_NO_FILE = b"58P01"
_PREREQUISITE = "55000"  # from version 18 on, a missing publication causes this warning, and the server sends no rows
_STANDBYS = "StandbySlotsHaveCaughtup"  # the server's function that reports missing standbys, with the same state


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The identity of the cluster, its timeline and the end of its WAL."""

    system_identifier: str
    timeline: int
    wal_end: int


class ReplicationConnection:
    """One walsender session. It runs commands until `start`. After that, it only streams, until `finish` or `close`.

    Not thread-safe.
    """

    def __init__(self, connection: PatientConnection) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._slot = ""
        self._skipped: str | None = None
        self._over = False
        self.unsent = False
        """Whether some of our output waits for room in the socket. If so, call `flush` when the socket is writable."""

    @classmethod
    def connect(cls, dsn: str, *, settings: Mapping[str, str] | None = None, patience: Patience | None = None) -> Self:
        """Opens a replication session to the database in `dsn`; `settings` control how the server prints values.

        Raises ChangelogError; see `connect` in `session.connection`.
        """
        return cls(connect(dsn, settings=settings, replication=True, patience=patience))

    @property
    def server_version(self) -> int:
        """The version as a number, as libpq gives it: 180006 is 18.6."""
        return self._connection.info.server_version

    def fileno(self) -> int:
        """Returns the socket's file descriptor, on which a caller can wait."""
        return self._pgconn.socket

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Runs a command with the simple protocol and returns its rows. Raises ChangelogError."""
        with translated(f"running {sql.split(maxsplit=1)[0]}"):
            cursor = self._connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def backend_pid(self) -> int:
        """Returns the id of the server process that serves this session.

        Asks the server itself, because a proxy may have told libpq another id.
        """
        return int(self.query("SELECT pg_backend_pid()")[0][0])

    def identify_system(self) -> System:
        """Returns the server's identity and the end of its flushed log."""
        identifier, timeline, wal_end, _ = self.query("IDENTIFY_SYSTEM")[0]
        return System(system_identifier=identifier, timeline=timeline, wal_end=parse_lsn(wal_end))

    def timeline_history(self, timeline: int) -> tuple[tuple[int, int], ...]:
        """Returns the ancestors of `timeline`, oldest first, each with the log position at which the ancestor ends."""
        if timeline == 1:
            return ()
        [(_, content)] = self.query(f"TIMELINE_HISTORY {timeline}")
        # Some servers send the content as text, others as bytes.
        return parse_history(content.encode() if isinstance(content, str) else content)

    def create_slot(self, name: str, *, failover: bool = False, excused: Callable[[], bool] = lambda: True) -> int:
        """Creates a permanent slot for pgoutput. Returns the log position from which the slot delivers changes.

        The server first waits until every transaction that is running now has ended. During this wait, the method calls
        `excused` every two seconds; if that returns false, the server counts as hung. `failover` needs PostgreSQL 17.
        """
        options = "(SNAPSHOT 'nothing', FAILOVER)" if failover else "NOEXPORT_SNAPSHOT"
        before = self._connection.patience
        self._connection.patience = replace(before, silence_s=_CREATION_CHECK_S, excused=excused, stopping_s=0.0)
        [row] = self.query(f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL pgoutput {options}")
        self._connection.patience = before
        return parse_lsn(row[1])

    def drop_slot(self, name: str) -> None:
        """Drops a slot. Raises ChangelogError, for example IN_USE if a session reads the slot."""
        self.query(f"DROP_REPLICATION_SLOT {identifier(name)}")

    def start(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """Starts streaming from `slot`, at `lsn` or at the slot's confirmed position, whichever is later.

        `options` go to the output plugin. Raises ChangelogError: IN_USE, naming the session, if another session reads
        the slot; GAP if the slot is missing or has lost its log; other kinds for other errors of the server.
        """
        option_list = ", ".join(f"{identifier(name)} {literal(value)}" for name, value in options.items())
        command = f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(lsn)} ({option_list})"
        self.query("SET client_min_messages TO warning")
        self._connection.add_notice_handler(self._notice)
        with translated(f"starting to stream from slot {slot}"):
            self._pgconn.send_query(command.encode())
            result = self._connection.wait(generators.execute(self._pgconn))[-1]
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._refusal(result, slot)
        self._slot = slot

    def receive(self, max_bytes: int) -> list[bytes]:
        """Returns the payloads that have arrived, up to about `max_bytes` bytes. Never waits; the list may be empty.

        Long logical messages of other applications are returned without their content.

        Raises ChangelogError: CONNECTION if the connection broke or the server ended the stream. If the server gave a
        reason, the kind of the error depends on the reason.
        """
        payloads: list[bytes] = []
        get, room = self._pgconn.get_copy_data, max_bytes
        has_consumed = False
        try:
            while room > 0 and not self._over:
                nbytes, data = get(1)
                if nbytes > 0:
                    payloads.append(trimmed(memoryview(data)))
                    del data  # libpq's own copy
                    room -= nbytes
                    has_consumed = False
                elif nbytes < 0:
                    self._over = True
                elif has_consumed:
                    break
                else:
                    self._pgconn.consume_input()
                    has_consumed = True
        except psycopg.Error as error:
            if not payloads:
                raise explain(None, str(error), "streaming") from error
        if self._skipped is not None:  # the server left rows out, so no frame that came with its warning is published
            raise _no_publication(self._skipped)
        if self._over and not payloads:  # payloads that arrived before the end are returned first
            raise self._ending()
        return payloads

    def send_status(self, written: int, flushed: int, *, reply: bool) -> None:
        """Tells the server up to which log position we have received changes, and up to which they are durable.

        `reply` requests a keepalive.
        """
        now_us = int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        self._send(_STATUS.pack(b"r", written, flushed, flushed, now_us, reply))

    def flush(self) -> None:
        """Sends as much of our buffer as the socket accepts."""
        try:
            self.unsent = self._pgconn.flush() == 1
        except psycopg.Error as error:
            raise explain(None, str(error), "streaming") from error

    def finish(self, written: int, flushed: int) -> None:
        """Ends the stream properly: sends a last status and CopyDone, then waits up to two seconds for the server.

        When the server reports that START_REPLICATION is complete, it has stored the status and released the slot.
        """
        deadline = time.monotonic() + _DRAIN_S
        with translated("ending the stream"):
            self.send_status(written, flushed, reply=False)
            self._pgconn.put_copy_end()
            self.flush()
            nbytes = 0
            while nbytes >= 0 and time.monotonic() < deadline:
                nbytes, _ = self._pgconn.get_copy_data(1)
                if nbytes == 0:
                    self._wait(deadline)
            while nbytes < 0 and self._pgconn.is_busy() and time.monotonic() < deadline:
                self._wait(deadline)

    def close(self) -> None:
        """Closes the connection; the server notices and frees the slot."""
        self._connection.close()

    def _send(self, message: bytes) -> None:
        try:
            self._pgconn.put_copy_data(message)
        except psycopg.Error as error:
            raise explain(None, str(error), "streaming") from error
        self.flush()

    def _wait(self, deadline: float) -> None:
        readable = select.poll()
        readable.register(self.fileno(), select.POLLIN)
        readable.poll(max(0.0, deadline - time.monotonic()) * 1000)
        self._pgconn.consume_input()

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.source_function == _STANDBYS:
            return  # the server waits for a standby; the module `session.waits` reports this
        if notice.sqlstate == _PREREQUISITE and notice.severity_nonlocalized == "WARNING":
            self._skipped = notice.message_primary

    def _ending(self) -> ChangelogError:
        """Returns the error that says why the server ended the stream."""
        with translated("streaming"):
            result = self._connection.wait(generators.fetch(self._pgconn))
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return ChangelogError(Kind.CONNECTION, "PostgreSQL ended the stream")
        if result.error_field(pq.DiagnosticField.SQLSTATE) == _UNDEFINED:
            return _no_publication(_message(result))
        if result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) == _STANDBYS.encode():
            return ChangelogError(Kind.CONNECTION, f"PostgreSQL ended the stream: {_message(result)}")
        return _explain_result(result, f"streaming from slot {self._slot}")

    def _refusal(self, result: pq.abc.PGresult, slot: str) -> ChangelogError:
        action = f"starting to stream from slot {slot}"
        error = _explain_result(result, action)
        if error.kind is Kind.CONNECTION:
            return error
        rows = self.query(_SLOT.format(slot=literal(slot)))
        if not rows:
            return ChangelogError(
                Kind.GAP,
                f"replication slot {slot} does not exist",
                hint=f"a new slot cannot reach back to what was published; {OVER_GAP}",
            )
        wal_status, pid, *session = rows[0]
        if error.kind is Kind.IN_USE and pid is not None:
            return ServerSession(pid, *session).in_use(slot)
        if wal_status == "lost":
            return ChangelogError(
                Kind.GAP,
                f"replication slot {slot} has lost its log (the server removed or invalidated it)",
                hint=f"raise max_slot_wal_keep_size to prevent this in future; {OVER_GAP}",
            )
        return error


_SLOT = f"""
SELECT s.wal_status, s.active_pid, {COLUMNS}
FROM pg_catalog.pg_replication_slots AS s LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = {{slot}}
"""


def parse_history(content: bytes) -> tuple[tuple[int, int], ...]:
    """Parses a timeline history file. Returns what `ReplicationConnection.timeline_history` returns."""
    lines = (line.partition(b"#")[0].split(maxsplit=2) for line in content.splitlines())
    try:
        return tuple((int(fields[0]), parse_lsn(fields[1].decode())) for fields in lines if fields)
    except (IndexError, ValueError) as error:
        raise ChangelogError(Kind.MALFORMED, "cannot parse the server's timeline history file") from error


def _explain_result(result: pq.abc.PGresult, action: str) -> ChangelogError:
    """Returns our error for a failed START_REPLICATION, or for the end of its stream."""
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    if state == _NO_FILE:
        hint = f"the server removed log that had not been read yet; {OVER_GAP}"
        return ChangelogError(Kind.GAP, f"{action}: {_message(result)}", hint=hint)
    return explain(state.decode() if state else None, _message(result), action)


def _message(result: pq.abc.PGresult) -> str:
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return message.decode("utf-8", "replace").strip()


def _no_publication(server_message: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"the publication did not exist at this point of the log ({server_message})",
        hint=f"the slot cannot move past this point; {OVER_GAP}",
    )


def stream_options(publication: str, server_version: int) -> dict[str, str]:
    """Returns the options for pgoutput: the publication, logical messages, and the server's newest protocol version.

    See the protocol page *Logical Streaming Replication Parameters*.
    """
    version = server_version // 10_000
    newest = 4 if version >= 16 else 3 if version >= 15 else 2
    return {"proto_version": str(newest), "publication_names": identifier(publication), "messages": "true"}
