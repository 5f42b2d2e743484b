"""Tests that messages of PostgreSQL's output plugin `pgoutput` are decoded without loss: a decoded message that is
encoded again has the same bytes.

Real servers send the messages, for plain, streamed and two-phase transactions. The messages must include every kind
that the newest version of the protocol has.

`python -m tests.integration.test_pgoutput` writes the messages of the newest server to a file. The unit tests read this
file.
"""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from changelog.connectors.servers.postgres import PostgresServer, find_bin, temporary_server
from changelog.connectors.sources.postgres.decode.messages import Decoded, StreamStart, StreamStop
from changelog.connectors.sources.postgres.decode.pgoutput import decode
from tests.servers import SETTINGS, postgres_bin
from tests.unit.postgres.pgoutput_encoder import encode

TWO_PHASE = {"max_prepared_transactions": "4", **SETTINGS}
SLOT = "captured"

WORK = """
CREATE TYPE mood AS ENUM ('calm', 'härter');
CREATE TABLE "Größe" (id int PRIMARY KEY, m mood, note text, big text);
ALTER TABLE "Größe" ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE keyed (id int PRIMARY KEY, note varchar(9));
CREATE PUBLICATION captured FOR ALL TABLES;
SELECT pg_create_logical_replication_slot('captured', 'pgoutput', false, true);
SELECT pg_replication_origin_create('elsewhere');
INSERT INTO "Größe" VALUES (1, 'härter', NULL, repeat('x', 3000)), (2, 'calm', 'zwei', 'y');
UPDATE "Größe" SET note = 'eins' WHERE id = 1;
UPDATE keyed SET note = 'none';
INSERT INTO keyed VALUES (1, 'a');
UPDATE keyed SET id = 2;
DELETE FROM keyed;
ALTER TABLE keyed REPLICA IDENTITY FULL;
INSERT INTO keyed VALUES (3, NULL);
UPDATE keyed SET note = 'b';
DELETE FROM keyed;
TRUNCATE "Größe", keyed RESTART IDENTITY CASCADE;
BEGIN; SELECT pg_logical_emit_message(true, 'provenance', '{"serviceName": "s"}'); INSERT INTO keyed VALUES (4); COMMIT;
SELECT pg_logical_emit_message(false, 'outside', 'x');
SELECT pg_replication_origin_session_setup('elsewhere');
BEGIN; SELECT pg_replication_origin_xact_setup('0/100', '2026-01-01 00:00+00'); INSERT INTO keyed VALUES (5); COMMIT;
SELECT pg_replication_origin_session_reset();
BEGIN; INSERT INTO keyed VALUES (6); SAVEPOINT s; INSERT INTO keyed VALUES (7); ROLLBACK TO s; COMMIT;
BEGIN; INSERT INTO keyed VALUES (8); PREPARE TRANSACTION 'kept'; COMMIT PREPARED 'kept';
BEGIN; INSERT INTO keyed VALUES (9); PREPARE TRANSACTION 'left'; ROLLBACK PREPARED 'left';
"""

KINDS = set("BCORYIUDTMSEcAbPKrp")


@pytest.fixture(scope="module", params=["18", "15"])
def prepared_server(request: pytest.FixtureRequest, starts_servers: None) -> Iterator[PostgresServer]:
    bin_dir = find_bin() if request.param == "18" else postgres_bin(15)
    with temporary_server(bin_dir, settings=TWO_PHASE) as running:
        yield running


def test_each_message_that_a_server_sends_is_decoded_and_encoded_to_the_same_bytes(
    prepared_server: PostgresServer,
) -> None:
    version = work(prepared_server.dsn())
    kinds = set()
    for streaming in ("off", "on" if version < 16 else "parallel"):
        block_xid: int | None = None
        for payload in peek(prepared_server.dsn(), streaming):
            message = decode(payload, streaming=block_xid is not None)
            assert encode(message, xid=_xid(payload, block_xid)) == payload
            block_xid = _block_xid(message, block_xid)
            kinds.add(chr(payload[0]))
    assert kinds == (KINDS if version >= 16 else KINDS - set("SEcAp"))  # PostgreSQL 15 streams only large transactions


def work(dsn: str) -> int:
    """Runs the statements of WORK. Returns the server's major version."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in filter(None, (part.strip() for part in WORK.split(";"))):
            connection.execute(statement.encode())
        return connection.info.server_version // 10_000


def peek(dsn: str, streaming: str) -> list[bytes]:
    """Returns the messages that the slot sends, without advancing the slot."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.info.server_version // 10_000
        if streaming != "off" and version >= 16:
            name = "logical_replication_mode" if version == 16 else "debug_logical_replication_streaming"
            connection.execute(f"SET {name} = 'immediate'".encode())
        cursor = connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', %s,"
            " 'publication_names', 'captured', 'messages', 'true', 'streaming', %s)",
            [SLOT, "3" if version < 16 else "4", streaming],
        )
        return [bytes(data) for (data,) in cursor]


def _xid(payload: bytes, block_xid: int | None) -> int | None:
    """Returns the transaction id at the start of a message in a streamed block: the id of the block's transaction or of
    one of its subtransactions. A streamed block is a part of a transaction that the server sends before the transaction
    ends. Outside a block, messages have no id, and the result is None.
    """
    return int.from_bytes(payload[1:5]) if block_xid is not None else None


def _block_xid(message: Decoded, block_xid: int | None) -> int | None:
    if isinstance(message, StreamStart):
        return message.xid
    return None if isinstance(message, StreamStop) else block_xid


def _capture(path: Path) -> None:
    """Writes one message to `path` for each combination of mode (plain or streamed), type, table and kind of old row.
    For each message, writes its mode, its bytes, and the decoded message. Leaves out long messages.
    """
    texts: dict[tuple[object, ...], str] = {}
    with temporary_server(settings=TWO_PHASE) as running:
        work(running.dsn())
        for streaming in ("off", "parallel"):
            block_xid: int | None = None
            for payload in peek(running.dsn(), streaming):
                message = decode(payload, streaming=block_xid is not None)
                mode = "plain" if block_xid is None else "streamed"
                shape = (mode, type(message), getattr(message, "old_kind", None), getattr(message, "relid", None))
                text = f"{mode} {payload.hex()}\n{message!r}"
                if len(text) < 2000:
                    texts.setdefault(shape, text)
                block_xid = _block_xid(message, block_xid)
    path.write_text("\n\n".join(texts.values()) + "\n")


if __name__ == "__main__":
    _capture(Path(__file__).parents[1] / "unit" / "postgres" / "pgoutput_captured.txt")
