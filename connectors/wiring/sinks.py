"""From the configuration to the store of the changelog."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from changelog.connectors import failpoints
from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.extras import installation
from changelog.connectors.sinks import Log, Sink
from changelog.connectors.sinks.files.log import FileLog
from changelog.connectors.sinks.files.sink import FileSink
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
    """The sink that the configuration names; nothing is held yet. Once `stopping`, it waits no longer than it must.

    Opened `over_gap`, it does not refuse to go on where it lost rows: the next commit is to tell of the gap.
    """
    if isinstance(config.sink, FilesConfig):
        return FileSink(config.sink.path, over_gap=over_gap, reach=reach)
    with extra_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        return kafka.open_sink(config, config.sink, over_gap=over_gap, reach=reach, stopping=stopping)


def open_log(config: Config) -> Log:
    """A reader of the changelog that the configuration names."""
    if isinstance(config.sink, FilesConfig):
        return FileLog(config.sink.path)
    with extra_needed():
        from changelog.connectors.wiring import kafka  # noqa: PLC0415

        return kafka.open_log(config, config.sink)


def read_versions(log: Log) -> list[Version]:
    """The versions of columns that a changelog holds, oldest first; none of one that has no checkpoint."""
    if log.checkpoint() is None:
        return []
    return [
        Version.parse(state.encode())
        for rows in log.read(entity=SCHEMAS)
        for state in rows.column("current").to_pylist()
    ]


def read_gaps(log: Log) -> list[Record]:
    """The rows that tell of gaps, oldest first."""
    return [record for rows in log.read(entity=GAPS) for record in batch.records(rows)]


@contextmanager
def extra_needed() -> Iterator[None]:
    """Around an import of `changelog.connectors.wiring.kafka`: raises ChangelogError (USAGE) where its extra is not
    installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "changelog":
            raise
        raise ChangelogError(
            Kind.USAGE,
            f"[sink] kind is kafka, and {missing} is not installed",
            hint=installation("kafka"),
        ) from error
