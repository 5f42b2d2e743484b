"""Serves views at an address, until it is told to stop."""

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from starlette.types import ASGIApp

from changelog.connectors.config import Config, FilesConfig
from changelog.connectors.extras import extra_needed
from changelog.connectors.views.catalogue import catalogue
from changelog.connectors.views.files.engine import FileEngine
from changelog.connectors.views.http.app import SURFACE, views_app
from changelog.connectors.views.http.instances import InstanceApi
from changelog.connectors.views.http.waiting import WAIT_S
from changelog.connectors.views.reporting import Reporting
from changelog.connectors.views.served import SharedEngine, StateEngine
from changelog.connectors.web.access import Access
from changelog.connectors.web.serving import Serving, served
from changelog.connectors.wiring.sinks import kafka_needed, open_folder


@contextlib.contextmanager
def serving_views(
    config: Config, *, archive: Path | None = None, logs_requests: bool = False, wait_s: float = WAIT_S
) -> Iterator[Serving]:
    """Yields a server of the views of a configuration. If `archive` is set, the server reads this folder instead of the
    configured sink.

    Raises the errors of `open_engine`, of `changelog.connectors.views.catalogue.catalogue` and of
    `changelog.connectors.web.serving.served`.
    """
    settings = config.serve

    def make_app(access: Access, stopping: Callable[[], bool]) -> ASGIApp:
        token = settings.streams.instance_token
        app = views_app(
            config.name,
            views,
            access,
            names=(settings.host, *settings.names),
            is_loopback=settings.is_loopback,
            stopping=stopping,
            logs_requests=logs_requests,
            wait_s=wait_s,
        )
        if token is None or not isinstance(engine, SharedEngine):
            return app
        return InstanceApi(app, token=token, answer=engine.answer)

    with contextlib.closing(open_engine(config, archive)) as engine, contextlib.ExitStack() as ending:
        views = catalogue(engine, config.views)
        if isinstance(engine, SharedEngine):
            ending.enter_context(contextlib.closing(Reporting(engine.figures, sys.stderr)))
        with served(settings, SURFACE, make_app) as server, frozen():
            yield server


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Excludes the objects that exist now from garbage collection until the block ends.

    Almost all of them, such as modules and classes, never become garbage. But each full collection would examine all of
    them, while every request waits.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def open_engine(config: Config, archive: Path | None) -> StateEngine:
    """Returns the engine that reads the folder `archive`, or the configured sink.

    Raises ChangelogError: USAGE if a package is missing, PRECONDITION if there is no changelog in `archive`, and the
    errors of `changelog.connectors.views.streams.opening.open_engine`.
    """
    if archive is not None:
        open_folder(archive)
        return FileEngine(archive)
    if isinstance(config.sink, FilesConfig):
        return FileEngine(config.sink.path)
    with kafka_needed():
        import changelog.connectors.wiring.kafka  # noqa: F401, PLC0415 - fails if a package is missing
    with extra_needed("views", "serving views of topics needs {}, which is not installed"):
        from changelog.connectors.views.streams import opening  # noqa: PLC0415
    declared = {(view.entity, view.serve.services) for view in config.views.values() if view.serve is not None}
    return opening.open_engine(config, config.sink, declared)
