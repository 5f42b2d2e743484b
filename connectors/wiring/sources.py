"""Opens the database that the configuration names. This module knows which folder implements which kind of source."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from changelog.connectors.config import Config, DebeziumConfig, MysqlConfig, PostgresConfig
from changelog.connectors.extras import installation
from changelog.connectors.sources import Database
from changelog.connectors.sources.candidates import Candidate
from changelog.connectors.sources.postgres.candidate import PostgresCandidate
from changelog.connectors.sources.postgres.database import PostgresDatabase, Settings
from changelog.connectors.wiring.entities import resolve
from changelog.connectors.wiring.sinks import open_log, read_versions
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.versions import Version

_SLOT_PATIENCE_S = 5.0


def database(
    config: Config, *, stopping: Callable[[], bool] = lambda: False, alive: Callable[[], None] = lambda: None
) -> Database:
    """Returns the database that the configuration names. Does not connect yet.

    Once `stopping` returns True, every wait for the database ends. `alive` is called repeatedly while the database is
    being opened. This shows that the service does not hang, although the opening may take long. Raises ChangelogError
    (USAGE) if the packages for this kind of database are not installed.
    """
    if isinstance(config.source, DebeziumConfig):
        from changelog.connectors.wiring import debezium  # noqa: PLC0415 - slow, and few services need it

        return debezium.database(config, config.source)
    if isinstance(config.source, MysqlConfig):
        with client_needed():
            from changelog.connectors.wiring import mysql  # noqa: PLC0415 - late: it needs an optional package
        return mysql.database(config, config.source, stopping)
    return PostgresDatabase(postgres_settings(config, stopping=stopping, alive=alive))


def candidate(dsn: str) -> Candidate:
    """Returns an object through which `changelog init` reads the database that a connection string names.

    The function takes a connection string, because `changelog init` has no configuration yet. Does not connect yet.
    """
    if kind_of(dsn) == "mysql":
        with client_needed():
            from changelog.connectors.wiring import mysql  # noqa: PLC0415
        return mysql.candidate(dsn)
    return PostgresCandidate(dsn)


def kind_of(dsn: str) -> str:
    """Returns the kind of the database that a connection string names. It is a value of `[source] kind`."""
    return "mysql" if dsn.partition("://")[0] in ("mysql", "mariadb") else "postgres"


def event_trigger_script(dsn: str | None) -> str:
    """Returns SQL that creates an event trigger. An administrator has to run this SQL.

    The trigger writes each change of a table's or a publication's definition into PostgreSQL's log. Raises
    ChangelogError (USAGE) if the database is not PostgreSQL, because the logs of other databases report these changes
    anyway.
    """
    if dsn is not None and kind_of(dsn) != "postgres":
        raise ChangelogError(
            Kind.USAGE, "--event-trigger is for PostgreSQL; the binary log of MySQL and MariaDB has all DDL anyway"
        )
    return PostgresCandidate.event_trigger_script()


def postgres_settings(
    config: Config, *, stopping: Callable[[], bool] = lambda: False, alive: Callable[[], None] = lambda: None
) -> Settings:
    """Returns the settings of the PostgreSQL source. `stopping` and `alive` are as in `database`.

    Raises ChangelogError (USAGE) if the configuration names another kind of database.
    """
    source = config.source
    if not isinstance(source, PostgresConfig):
        raise ChangelogError(Kind.USAGE, f'this command is only for PostgreSQL, and [source] kind is "{source.kind}"')
    default_name = config.name.replace("-", "_")
    return Settings(
        name=config.name,
        dsn=source.dsn,
        slot=source.slot or default_name,
        publication=source.publication or default_name,
        failover=source.failover,
        keeps_state=config.state is not None,
        hmac_key=config.hmac_key,
        signals_secret=config.signals_secret,
        codec=config.codec,
        workers=source.snapshot_workers,
        chunk_pages=source.snapshot_pages,
        patience_s=_SLOT_PATIENCE_S,
        answer_s=source.query_timeout_seconds,
        read_s=source.read_timeout_seconds,
        stopping=stopping,
        alive=alive,
    )


@contextmanager
def client_needed() -> Iterator[None]:
    """Raises ChangelogError (USAGE) if the block imports the client of MySQL and the client is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pymysql":
            raise
        message = "the database is MySQL or MariaDB, and pymysql is not installed"
        raise ChangelogError(Kind.USAGE, message, hint=installation("mysql")) from error


def read_entities(config: Config, of: Database) -> Sequence[Entity]:
    """Returns the entities that the configuration makes of the tables that the database has now.

    Raises ChangelogError: the errors of reading the tables, and those of `resolve`.
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
        return open_log(self._config).read_together(entities, key=key)
