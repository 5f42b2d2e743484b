"""Asks the server to send its binary log. The server then sends one event in each packet, until the connection ends.

Sources: the pages *COM_BINLOG_DUMP_GTID* of MySQL's Source Code Documentation, and *Replication Protocol* of MariaDB's
Knowledge Base.
"""

import struct
from collections.abc import Sequence

from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour

HEARTBEAT_S = 1.0
"""How long the server waits without an event before it sends a heartbeat."""

_COM_BINLOG_DUMP = 0x12
_COM_BINLOG_DUMP_GTID = 0x1E
_THROUGH_GTID = 0x04
_SEND_ANNOTATIONS = 0x02
_FIRST_POSITION = 4

# While our queue of events is full, we do not read from the connection. The server must not give up then.
_NET_WRITE_TIMEOUT_S = 86_400

_DOING = "starting to stream the binary log"


def start_dump(connection: Connection, *, server_id: int, gtids: str, encoded_gtids: bytes) -> None:
    """Makes the server send all events of transactions that are not in a set of GTIDs.

    MariaDB gets the set as text (`gtids`), and MySQL gets it in bytes (`encoded_gtids`); the other argument is ignored.
    No replica of the server may have the same `server_id`. After this call, `connection.stream_packets` returns the
    events, each with a byte 0 before it. Raises ChangelogError.
    """
    for statement in _preparation(connection.flavour, gtids):
        connection.execute(statement)
    if connection.flavour is Flavour.MARIADB:
        content = struct.pack("<IHI", _FIRST_POSITION, _SEND_ANNOTATIONS, server_id)
        connection.send(_COM_BINLOG_DUMP, content, _DOING)
        return
    content = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, _FIRST_POSITION, len(encoded_gtids)) + encoded_gtids
    connection.send(_COM_BINLOG_DUMP_GTID, content, _DOING)


def _preparation(flavour: Flavour, gtids: str) -> Sequence[str]:
    period_ns = int(HEARTBEAT_S * 1e9)
    common = (
        f"SET SESSION net_write_timeout = {_NET_WRITE_TIMEOUT_S}",
        f"SET @master_heartbeat_period = {period_ns}, @source_heartbeat_period = {period_ns}",
        "SET @master_binlog_checksum = 'CRC32', @source_binlog_checksum = 'CRC32'",
    )
    if flavour is Flavour.MYSQL:
        return common
    capability = 4  # says that we understand GTID events
    return (*common, f"SET @mariadb_slave_capability = {capability}", f"SET @slave_connect_state = '{gtids}'")
