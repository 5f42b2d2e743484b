"""Opens the database that the configuration names. This module knows which folder implements which kind of source."""

from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow as pa

from changelog.connectors.config import Config
from changelog.connectors.sources import Candidate, Database
from changelog.connectors.sources.postgres.candidate import PostgresCandidate
from changelog.connectors.sources.postgres.database import PostgresDatabase, Settings
from changelog.connectors.wiring.entities import resolve
from changelog.connectors.wiring.sinks import open_log, read_versions
from changelog.envelope.entity import Entity
from changelog.envelope.versions import Version

_SLOT_PATIENCE_S = 5.0


def database(
    config: Config, *, stopping: Callable[[], bool] = lambda: False, alive: Callable[[], None] = lambda: None
) -> Database:
    """Returns the database that the configuration names. It does not connect yet.

    Once `stopping` returns True, every wait for the database ends. `alive` is called repeatedly while the database is
    being opened, because this may take long without any failure.
    """
    return PostgresDatabase(postgres_settings(config, stopping=stopping, alive=alive))


def candidate(dsn: str) -> Candidate:
    """Returns the database that a connection string names, for `changelog init`, which has no configuration yet.

    It does not connect yet.
    """
    return PostgresCandidate(dsn)


def event_trigger_script() -> str:
    """Returns SQL that an administrator may run. Then the log itself reports changes of tables and publications."""
    return PostgresCandidate.event_trigger_script()


def postgres_settings(
    config: Config, *, stopping: Callable[[], bool] = lambda: False, alive: Callable[[], None] = lambda: None
) -> Settings:
    """Returns the settings of the PostgreSQL source. `stopping` and `alive` are as in `database`."""
    return Settings(
        name=config.name,
        dsn=config.source.dsn,
        slot=config.slot,
        publication=config.publication,
        failover=config.source.failover,
        hmac_key=config.hmac_key,
        signals_secret=config.signals_secret,
        codec=config.codec,
        workers=config.source.snapshot_workers,
        chunk_pages=config.source.snapshot_pages,
        patience_s=_SLOT_PATIENCE_S,
        answer_s=config.source.query_timeout_seconds,
        read_s=config.source.read_timeout_seconds,
        stopping=stopping,
        alive=alive,
    )


def read_entities(config: Config, of: Database) -> Sequence[Entity]:
    """Returns the entities that the configuration makes of the tables that the database has now.

    Raises ChangelogError: the errors of reading the tables, and USAGE as `resolve` does.
    """
    return resolve(config, of.tables())


class StoredChangelog:
    """Gives sources access to the changelog that the configuration names. Each call opens the changelog again."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def versions(self) -> Sequence[Version]:
        """See `changelog.connectors.sources.Changelog`."""
        return read_versions(open_log(self._config))

    def rows(self, entities: Collection[str], key: str | None) -> Iterator[pa.RecordBatch]:
        """See `changelog.connectors.sources.Changelog`."""
        log = open_log(self._config)
        if key is None:
            return log.read_together(entities)
        [entity] = entities
        return log.read(entity=entity, key=key)
