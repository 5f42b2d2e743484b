"""Opens the store of the changelog that the configuration names, for writing or for reading."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from changelog.connectors import failpoints
from changelog.connectors.config import OWN_ENVELOPE, Config, FilesConfig
from changelog.connectors.extras import extra_needed
from changelog.connectors.sinks import Log, Sink
from changelog.connectors.sinks.files.log import FileLog, is_changelog
from changelog.envelope.columnar import batch
from changelog.envelope.entity import GAPS, SCHEMAS
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Record
from changelog.envelope.versions import Version


def open_sink(
    config: Config,
    *,
    over_gap: bool = False,
    reach: failpoints.Reach = failpoints.nowhere,
    stopping: Callable[[], bool] = lambda: False,
) -> Sink:
    """Returns the sink that the configuration names. The sink claims its store only when `recover` is called.

    Once `stopping` returns True, the sink waits only a few seconds for its store. With `over_gap`, it does not refuse a
    store that has lost rows, because the caller records the gap in the next commit. At each fail point (a place where
    tests can make the process crash), `reach` is called with the name of this point. Raises ChangelogError (USAGE) if
    Kafka is configured and a package for it is not installed.
    """
    if isinstance(config.sink, FilesConfig):
        from changelog.connectors.sinks.files.sink import FileSink  # noqa: PLC0415 - slow, and readers do not need it

        return FileSink(config.sink.path, over_gap=over_gap, reach=reach)
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        return kafka.open_sink(config, config.sink, over_gap=over_gap, reach=reach, stopping=stopping)


def open_log(config: Config) -> Log:
    """Returns a reader of the changelog that the configuration names. Raises ChangelogError (USAGE) if Kafka is
    configured and a package for it is not installed.
    """
    if isinstance(config.sink, FilesConfig):
        return FileLog(config.sink.path)
    with kafka_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        return kafka.open_log(config, config.sink)


def open_folder(path: Path) -> Log:
    """Returns a reader of the file log or the archive in a folder. Raises ChangelogError (PRECONDITION) if the folder
    has neither.
    """
    if not is_changelog(path):
        hint = "name the folder that [sink] path names, the folder of an archive, or the service's configuration"
        raise ChangelogError(Kind.PRECONDITION, f"there is no changelog in {path}", hint=hint)
    return FileLog(path)


def refuse_other_envelope(config: Config, reader: str) -> None:
    """Raises ChangelogError (USAGE) if the changelog is not in our own envelope, because `reader` reads no other."""
    if config.envelope != OWN_ENVELOPE:
        raise ChangelogError(
            Kind.USAGE,
            f'{reader} reads only envelope = "changelog", but [sink] envelope is "{config.envelope}"',
            hint='also run a second service with envelope = "changelog", and with another name and prefix',
        )


def read_versions(log: Log) -> list[Version]:
    """Returns the versions of the entities' columns that a changelog holds, oldest first; none without a checkpoint."""
    if log.checkpoint() is None:
        return []
    return [
        Version.parse(state.encode())
        for rows in log.read(entity=SCHEMAS)
        for state in rows.column("current").to_pylist()
    ]


def read_gaps(log: Log) -> list[Record]:
    """Returns the rows of the entity `gaps`, oldest first. They record where changes were lost."""
    return [record for rows in log.read(entity=GAPS) for record in batch.records(rows)]


def kafka_needed() -> AbstractContextManager[None]:
    """Returns a context manager for the import of `changelog.connectors.wiring.kafka`.

    It raises ChangelogError (USAGE) if a package of the extra `kafka` is not installed.
    """
    return extra_needed("kafka", "[sink] kind is kafka, and {} is not installed")
