"""Connects to a server, for SQL, for the stream of the binary log, and for large results.

PyMySQL does the handshake, authentication and TLS. Afterwards, `Connection` replaces PyMySQL's reader by a
`PacketReader`, which waits as long as `PacketPatience` says, and also returns raw packets. No other module touches
PyMySQL's internals.
"""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import pymysql

from changelog.connectors.sources.mysql.session.address import Address, Tls, TlsMode
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.session.packets import POLL_S, PacketPatience, PacketReader, Packets
from changelog.connectors.sources.mysql.session.server_errors import explain, rejection, translated
from changelog.envelope.errors import ChangelogError, Kind

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 60.0

COM_QUERY = 0x03

_CHARSET = "utf8mb4"
_LIMITS = (
    "SET SESSION sql_big_selects = 1"
    " /*!50708 , max_execution_time = 0 */"
    " /*M! , max_statement_time = 0, idle_transaction_timeout = 0, idle_readonly_transaction_timeout = 0 */"
)
"""Turns off the server's own limits for statements and transactions: they may be too low for reading a table."""

_ERROR = 0xFF
_STREAM_PACKETS_MAX = 1 << 30
"""More packets than one read of the socket can return, so this is no limit."""


class Connection:
    """A session in autocommit mode. Only one thread may use it; but any thread may call `abort`.

    The session begins by running `statements`. The server's own time limits for a statement are off. Raises
    ChangelogError: ACCESS if the server refuses the account, CONNECTION if the server cannot be reached now,
    PRECONDITION if the database does not exist.
    """

    def __init__(
        self, address: Address, *, patience: PacketPatience | None = None, statements: Sequence[str] = ()
    ) -> None:
        self._patience = patience or PacketPatience()
        self._link: Any = _open(address)
        self._reader = PacketReader(self._link._sock, self._patience)
        self._link._rfile.close()
        self._link._rfile = self._reader
        self._link._read_timeout, self._link._write_timeout = POLL_S, WRITE_TIMEOUT_S
        try:
            for statement in (_LIMITS, *statements):
                self.execute(statement)
            [(text, self.id)] = self.query("SELECT VERSION(), CONNECTION_ID()")
            self.version = ServerVersion.parse(text)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def flavour(self) -> Flavour:
        """Whether the server is MySQL or MariaDB."""
        return self.version.flavour

    @property
    def closed(self) -> bool:
        """Whether the connection was closed, by us or because it broke."""
        return not self._link.open

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement with `%s` parameters, and returns its rows. A statement without a result has no rows."""
        with translated("asking the server"), self._link.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return list(cursor.fetchall())

    def execute(self, sql: str, values: Sequence[object] = ()) -> None:
        """Runs a statement with `%s` parameters, and ignores its rows."""
        self.query(sql, values)

    def send(self, command: int, content: bytes, action: str) -> None:
        """Sends a command. The caller then reads the answer with `packets` or `stream_packets`.

        `action` says in error texts what we were doing.
        """
        with translated(action):
            self._link._execute_command(command, content)
            self._link._sock.settimeout(POLL_S)
            self._link._current_timeout = POLL_S

    def stream_packets(self, action: str) -> Packets:
        """Waits until a packet has arrived, and returns all packets that have arrived; see `PacketReader.packets`.

        Only the last packet can be an error of the server, because the server sends nothing after an error. `action`
        says in error texts what we were doing. Raises ChangelogError (CONNECTION) if the connection broke.
        """
        with self._unbroken(action):
            return self._reader.packets(_STREAM_PACKETS_MAX)

    def packets(self, action: str, count_max: int) -> Packets:
        """Waits until a packet has arrived, and returns up to `count_max` packets; see `PacketReader.packets`.

        Raises ChangelogError (CONNECTION) if the connection broke. If the last packet is an error of the server, raises
        our error for it. Only the last packet can be an error, because the server sends nothing after an error.
        """
        with self._unbroken(action):
            packets = self._reader.packets(count_max)
        if packets.last()[:1] == bytes([_ERROR]):
            raise server_error(bytes(packets.last()), action)
        return packets

    @contextlib.contextmanager
    def _unbroken(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise ChangelogError(Kind.CONNECTION, f"{action}: the connection to the server broke: {error}") from error

    def abort(self) -> None:
        """Ends the connection at once. A thread that is waiting for the server then stops waiting."""
        link_socket: socket.socket | None = self._link._sock
        if link_socket is not None:
            with contextlib.suppress(OSError):
                link_socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the session. Calling it again does nothing."""
        if self._link.open:
            self._link._force_close()


def server_error(payload: bytes, action: str) -> ChangelogError:
    """Returns our error for an error packet. The page *ERR_Packet* of MySQL's documentation describes such packets."""
    number = int.from_bytes(payload[1:3], "little")
    message = payload[9:] if payload[3:4] == b"#" else payload[3:]
    return explain(number, message.decode("utf-8", "replace"), action)


class _Link(pymysql.connections.Connection):
    """A connection of PyMySQL. It loads certificates of authorities only if the server's certificate must be verified.

    PyMySQL itself would always load the system's certificates, and that takes more CPU time than everything else that a
    connection needs.
    """

    def _create_ssl_ctx(self, sslp: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        return sslp if isinstance(sslp, ssl.SSLContext) else _unverified()


def _open(address: Address) -> Any:
    try:
        return _Link(
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password.encode(),  # PyMySQL would encode a `str` as Latin-1
            database=address.database,
            charset=_CHARSET,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=CONNECT_TIMEOUT_S,
            program_name="changelog",
            ssl_disabled=address.tls.mode is TlsMode.DISABLED,
            ssl=_tls_context(address.tls),
        )
    except (pymysql.MySQLError, OSError, RuntimeError) as error:  # RuntimeError: PyMySQL lacks its extra `rsa`
        raise rejection(error, encrypted=address.tls.mode is not TlsMode.DISABLED) from error


def _tls_context(tls: Tls) -> ssl.SSLContext | None:
    """Returns the context for a connection that must use TLS; None if TLS is off or optional (PREFERRED).

    If TLS is optional, PyMySQL itself tries TLS, and connects without TLS if the server does not offer it.
    """
    if tls.mode in (TlsMode.DISABLED, TlsMode.PREFERRED):
        return None
    verifies = tls.mode in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY)
    try:
        context = ssl.create_default_context(cafile=tls.ca or None) if verifies or tls.ca else _unverified()
        context.check_hostname = tls.mode is TlsMode.VERIFY_IDENTITY
        context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # MySQL's self-made certificates do not pass this check
        if tls.cert:
            context.load_cert_chain(tls.cert, keyfile=tls.key or None)
    except (OSError, ssl.SSLError) as error:
        raise ChangelogError(
            Kind.USAGE,
            f"[source] dsn: a file for TLS cannot be read: {error}",
            hint="check ssl-ca, ssl-cert and ssl-key",
        ) from None
    return context


def _unverified() -> ssl.SSLContext:
    """Returns a context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
