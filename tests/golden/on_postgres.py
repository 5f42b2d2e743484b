"""Runs golden scripts on PostgreSQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from changelog.connectors.config import Config
from changelog.connectors.sources import ChangeSource
from changelog.connectors.sources.postgres.admin.catalog import read_tables
from changelog.connectors.sources.postgres.session.connection import connect
from changelog.connectors.sources.postgres.settings import Settings
from changelog.connectors.sources.postgres.source import PostgresSource
from changelog.connectors.sources.postgres.values.lsn import parse_lsn, through_lsn
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.connectors.wiring import entities
from changelog.envelope.checkpoint import Checkpoint


class GoldenPostgres:
    """The database at `dsn`, and the session in which one script runs; see `tests.golden.run.GoldenDatabase`."""

    schema = "public"

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session = psycopg.connect(dsn, autocommit=True)
        # `end_of_log` needs a session of its own, because the script's session may be inside a transaction.
        self._writer = psycopg.connect(dsn, autocommit=True)
        self.source: Mapping[str, Any] = {"kind": "postgres", "dsn": dsn}

    @property
    def in_transaction(self) -> bool:
        return self._session.info.transaction_status != TransactionStatus.IDLE

    def execute(self, statement: str) -> None:
        self._session.execute(statement.encode())

    def open(self, config: Config, recover: Callable[[], Checkpoint | None]) -> ChangeSource:
        with connect(self._dsn, settings=SETTINGS) as connection:
            bound: Sequence[Any] = entities.resolve(config, read_tables(connection))
        settings = Settings(
            name=config.name,
            dsn=self._dsn,
            slot=f"golden_{psycopg.conninfo.conninfo_to_dict(self._dsn)['dbname']}",
            publication="golden",
            failover=False,
            hmac_key=config.hmac_key,
            workers=1,
        )
        return PostgresSource(settings, bound, recover)

    def end_of_log(self) -> int:
        """Commits a message that the source ignores. Returns the end of the server's log after this commit."""
        self._writer.execute("SELECT pg_logical_emit_message(true, 'golden', '')")
        row = self._writer.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return parse_lsn(row[0])

    def through(self, checkpoint: Checkpoint) -> int:
        return through_lsn(checkpoint)

    def close(self) -> None:
        self._session.close()
        self._writer.close()
