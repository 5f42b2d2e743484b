"""From the configuration to the database that it names: the only place that knows which kind is which folder."""

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
    """The database that the configuration names; nothing is connected yet.

    Once `stopping`, no wait for it goes on; `alive` is called now and then while an opening rightly takes long.
    """
    return PostgresDatabase(postgres_settings(config, stopping=stopping, alive=alive))


def candidate(dsn: str) -> Candidate:
    """The database that a connection string names, before there is a configuration; nothing is connected yet."""
    return PostgresCandidate(dsn)


def event_trigger_script() -> str:
    """What an administrator may run so that the database's log itself tells of changes to tables and publications."""
    return PostgresCandidate.event_trigger_script()


def postgres_settings(
    config: Config, *, stopping: Callable[[], bool] = lambda: False, alive: Callable[[], None] = lambda: None
) -> Settings:
    """What the PostgreSQL source is told of the configuration."""
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
    """The entities that the configuration makes of the database's tables as they are now. Raises ChangelogError."""
    return resolve(config, of.tables())


class StoredChangelog:
    """The changelog that the configuration names, as sources ask for it: each call opens it as it is then."""

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
