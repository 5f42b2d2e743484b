"""A replication connection over libpq.

psycopg has no replication API of its own; what that takes (COPY BOTH, its messages and its end) is in this file
alone. Source: PostgreSQL's documentation, "Streaming Replication Protocol".
"""

import select
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import psycopg
from psycopg import generators, pq

from connectors.sources.postgres.session.connection import connect, explain, translated
from connectors.sources.postgres.session.patience import Patience, PatientConnection
from connectors.sources.postgres.session.sessions import COLUMNS, Session
from connectors.sources.postgres.stream.trimming import trimmed
from envelope.checkpoint import lsn_text, parse_lsn
from envelope.errors import OVER_GAP, ChangelogError, Kind

_STATUS = struct.Struct("!cQQQq?")
_POSTGRES_EPOCH_S = 946_684_800  # 2000-01-01
_DRAIN_S = 1.0
_MAKING_LOOK_S = 2.0
_UNDEFINED = b"42704"  # up to 17, a missing publication ends the stream with this error;
_PREREQUISITE = "55000"  # from 18 on, it only warns, and leaves the rows out
_STANDBYS = "StandbySlotsHaveCaughtup"  # the server's function that says which standby it waits for, by that code too


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Which cluster answers, on which timeline, and the end of its log."""

    system_identifier: str
    timeline: int
    wal_end: int


class ReplicationConnection:
    """One walsender session: commands first, then, after `start`, a stream that cannot be left but by `close`.

    Not safe for use by several threads at once.
    """

    def __init__(self, connection: PatientConnection) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._slot = ""
        self._skipped: str | None = None
        self._over = False
        self.unsent = False
        """Whether a part of what we sent waits for room in the socket; `flush` when it is writable."""

    @classmethod
    def connect(cls, dsn: str, *, settings: Mapping[str, str] | None = None, patience: Patience | None = None) -> Self:
        """Opens a session for replication from the database that `dsn` names; `settings` shape its output.

        Raises ChangelogError: USAGE, ACCESS or CONNECTION.
        """
        return cls(connect(dsn, settings=settings, replication=True, patience=patience))

    @property
    def server_version(self) -> int:
        """As libpq has it: 180006 is 18.6."""
        return self._connection.info.server_version

    def fileno(self) -> int:
        """The socket, for waiting."""
        return self._pgconn.socket

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a command gives, by the simple protocol. Raises ChangelogError."""
        with translated(f"asking PostgreSQL ({sql.split(maxsplit=1)[0]})"):
            cursor = self._connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def backend_pid(self) -> int:
        """The server's process of this session, from the server itself: a proxy between may have told us another."""
        return int(self.query("SELECT pg_backend_pid()")[0][0])

    def identify_system(self) -> System:
        """The server's identity and the end of what it has flushed."""
        identifier, timeline, wal_end, _ = self.query("IDENTIFY_SYSTEM")[0]
        return System(system_identifier=identifier, timeline=timeline, wal_end=parse_lsn(wal_end))

    def timeline_history(self, timeline: int) -> tuple[tuple[int, int], ...]:
        """The ancestors of `timeline`, oldest first, each with the log position at which it was left."""
        if timeline == 1:
            return ()
        [(_, content)] = self.query(f"TIMELINE_HISTORY {timeline}")
        return parse_history(content.encode() if isinstance(content, str) else content)  # its type varies by server

    def create_slot(self, name: str, *, failover: bool = False, excused: Callable[[], bool] = lambda: True) -> int:
        """Creates a permanent slot for pgoutput; gives the position from which it is consistent.

        Returns once every transaction that now runs has ended; every other second, `excused` says whether that may
        still take longer. `failover` needs PostgreSQL 17.
        """
        options = "(SNAPSHOT 'nothing', FAILOVER)" if failover else "NOEXPORT_SNAPSHOT"
        before = self._connection.patience
        self._connection.patience = replace(before, silence_s=_MAKING_LOOK_S, excused=excused, stopping_s=0.0)
        [row] = self.query(f"CREATE_REPLICATION_SLOT {_identifier(name)} LOGICAL pgoutput {options}")
        self._connection.patience = before
        return parse_lsn(row[1])

    def drop_slot(self, name: str) -> None:
        """Drops a slot that nobody reads; IN_USE when somebody does."""
        self.query(f"DROP_REPLICATION_SLOT {_identifier(name)}")

    def start(self, slot: str, lsn: int, options: Mapping[str, str]) -> None:
        """Begins streaming from `slot`, at `lsn` or at what it last confirmed, whichever is later.

        `options` are the output plugin's. Raises ChangelogError: IN_USE when the slot is read by another session,
        which is named; GAP when the slot is missing or lost its log; PRECONDITION for what else the server says.
        """
        listed = ", ".join(f"{_identifier(name)} {_literal(value)}" for name, value in options.items())
        command = f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL {lsn_text(lsn)} ({listed})"
        self.query("SET client_min_messages TO warning")
        self._connection.add_notice_handler(self._notice)
        with translated(f"starting to stream from slot {slot}"):
            self._pgconn.send_query(command.encode())
            result = self._connection.wait(generators.execute(self._pgconn))[-1]
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._refusal(result, slot)
        self._slot = slot

    def receive(self, max_bytes: int) -> list[bytes]:
        """The payloads that have arrived, about `max_bytes` of them at most; none when nothing has. Never waits.

        Of others' long messages, they hold no content.

        Raises ChangelogError: CONNECTION when the link broke or the server ended the stream, other kinds when it
        gave a reason of that kind.
        """
        payloads: list[bytes] = []
        get, room = self._pgconn.get_copy_data, max_bytes
        read = False
        try:
            while room > 0 and not self._over:
                nbytes, data = get(1)
                if nbytes > 0:
                    payloads.append(trimmed(memoryview(data)))
                    del data  # libpq's own copy
                    room -= nbytes
                    read = False
                elif nbytes < 0:
                    self._over = True
                elif read:
                    break
                else:
                    self._pgconn.consume_input()
                    read = True
        except psycopg.Error as error:
            if not payloads:
                raise explain(None, str(error), "streaming") from error
        if self._skipped is not None:  # rows were left out: nothing that came with the warning may be passed on
            raise _no_publication(self._skipped)
        if self._over and not payloads:  # what came before the end is given first
            raise self._ending()
        return payloads

    def send_status(self, written: int, flushed: int, *, reply: bool) -> None:
        """Tells the server what we have received and what is durable; `reply` asks for a keepalive in return."""
        now_us = int((time.time() - _POSTGRES_EPOCH_S) * 1_000_000)
        self._send(_STATUS.pack(b"r", written, flushed, flushed, now_us, reply))

    def flush(self) -> None:
        """Sends what waits in our buffer, as far as the socket takes it."""
        try:
            self.unsent = self._pgconn.flush() == 1
        except psycopg.Error as error:
            raise explain(None, str(error), "streaming") from error

    def finish(self, written: int, flushed: int) -> None:
        """Ends the stream as the protocol asks: a last status, CopyDone, and for up to a second the server's answer."""
        deadline = time.monotonic() + _DRAIN_S
        with translated("ending the stream"):
            self.send_status(written, flushed, reply=False)
            self._pgconn.put_copy_end()
            self.flush()
            while time.monotonic() < deadline:
                nbytes, _ = self._pgconn.get_copy_data(1)
                if nbytes < 0:
                    return
                if nbytes == 0:
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
            return  # it waits for a standby, as `waits` tells
        if notice.sqlstate == _PREREQUISITE and notice.severity_nonlocalized == "WARNING":
            self._skipped = notice.message_primary

    def _ending(self) -> ChangelogError:
        """Why the server ended the stream."""
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
        doing = f"starting to stream from slot {slot}"
        error = _explain_result(result, doing)
        if error.kind is Kind.CONNECTION:
            return error
        found = self.query(_SLOT.format(slot=_literal(slot)))
        if not found:
            return ChangelogError(
                Kind.GAP,
                f"replication slot {slot} does not exist",
                hint=f"a new slot cannot reach back to what was published; {OVER_GAP}",
            )
        wal_status, pid, *session = found[0]
        if error.kind is Kind.IN_USE and pid is not None:
            return Session(pid, *session).in_use(slot)
        if wal_status == "lost":
            return ChangelogError(
                Kind.GAP,
                f"replication slot {slot} has lost its log (the server removed or invalidated it)",
                hint=f"raise max_slot_wal_keep_size against the next time; {OVER_GAP}",
            )
        return error


_SLOT = f"""
SELECT s.wal_status, s.active_pid, {COLUMNS}
FROM pg_catalog.pg_replication_slots AS s LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = s.active_pid
WHERE s.slot_name = {{slot}}
"""


def parse_history(content: bytes) -> tuple[tuple[int, int], ...]:
    """A timeline history file: the ancestors, oldest first, each with the position at which it was left."""
    lines = (line.partition(b"#")[0].split(maxsplit=2) for line in content.splitlines())
    try:
        return tuple((int(fields[0]), parse_lsn(fields[1].decode())) for fields in lines if fields)
    except (IndexError, ValueError) as error:
        raise ChangelogError(Kind.MALFORMED, "the server's timeline history cannot be read") from error


def _explain_result(result: pq.abc.PGresult, doing: str) -> ChangelogError:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    return explain(state.decode() if state else None, _message(result), doing)


def _message(result: pq.abc.PGresult) -> str:
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return message.decode("utf-8", "replace").strip()


def _no_publication(said: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"the publication is missing at this point of the log ({said})",
        hint=f"the slot cannot pass it; {OVER_GAP}",
    )


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
