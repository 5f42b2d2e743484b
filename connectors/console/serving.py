"""Serves the console at an address, until it is told to stop."""

import contextlib
from collections.abc import Callable, Iterator

from starlette.types import ASGIApp

from changelog.connectors.config import Config
from changelog.connectors.console.app import SURFACE, console
from changelog.connectors.console.site import open_site
from changelog.connectors.web.access import Access
from changelog.connectors.web.serving import Serving, served


@contextlib.contextmanager
def serving(config: Config, *, logs_requests: bool = True) -> Iterator[Serving]:
    """Yields a console for the changelog of a configuration. If `logs_requests`, each request is logged.

    Raises the errors of `changelog.connectors.web.serving.served`, and those of `open_site`.
    """
    settings = config.console

    def make_app(access: Access, stopping: Callable[[], bool]) -> ASGIApp:
        names = (settings.host, *settings.names)
        site = open_site(config, stopping=stopping)
        return console(site, access, names=names, is_loopback=settings.is_loopback, logs_requests=logs_requests)

    with served(settings, SURFACE, make_app) as server:
        yield server
