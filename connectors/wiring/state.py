"""Opens the state that the configuration names: the store of the current row of every key."""

from collections.abc import Callable
from functools import partial

from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.extras import installation
from changelog.connectors.state.before_images import BeforeImages, Watcher
from changelog.connectors.wiring.sinks import open_log
from changelog.envelope.errors import ChangelogError, Kind


def open_state(
    config: Config,
    *,
    watcher: Watcher | None = None,
    stopping: Callable[[], bool] = lambda: False,
    alive: Callable[[], None] = lambda: None,
) -> BeforeImages | None:
    """Returns the state, and locks its folder; None if the configuration has no [state].

    `watcher`, `stopping` and `alive` are as in `BeforeImages`. Raises ChangelogError: USAGE if RocksDB's binding is not
    installed, and the errors of `RocksStore`.
    """
    if config.state is None:
        return None
    try:
        from changelog.connectors.state.rocks import RocksStore  # noqa: PLC0415 - late: it needs an optional package
    except ModuleNotFoundError as error:
        if error.name != "rocksdict":
            raise
        message = "[state] is set, and rocksdict is not installed"
        raise ChangelogError(Kind.USAGE, message, hint=installation("state")) from error
    store = RocksStore(config.state.path, name=config.name, changelog=_where(config))
    return BeforeImages(store, partial(open_log, config), watcher=watcher, stopping=stopping, alive=alive)


def _where(config: Config) -> str:
    """Returns the text, stored in the state's folder, that says where the changelog is to which the state belongs."""
    sink = config.sink
    return f"files {sink.path.absolute()}" if isinstance(sink, FilesConfig) else f"kafka {config.prefix}"
