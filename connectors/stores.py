"""From the configuration to the store of the changelog."""

from connectors import failpoints
from connectors.config import Config
from connectors.sinks import Sink
from connectors.sinks.files import FileSink


def open_sink(config: Config, *, reach: failpoints.Reach = failpoints.nowhere) -> Sink:
    """The sink that the configuration names; nothing is held yet."""
    return FileSink(config.sink.path, reach=reach)
