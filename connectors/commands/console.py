"""`changelog console`: serves pages that show the changelog in a browser, until it is interrupted."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from changelog.connectors import config
from changelog.connectors.commands.listening import add_listening_arguments, with_listening_options
from changelog.connectors.config import Config, ConsoleConfig
from changelog.connectors.extras import extra_needed
from changelog.connectors.terminal import say

if TYPE_CHECKING:
    from changelog.connectors.web.serving import Serving


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog console`."""
    add_listening_arguments(parser, "console", ConsoleConfig().port)


def execute(arguments: argparse.Namespace) -> int:
    """Serves the pages until SIGINT or SIGTERM."""
    settings = config.load(arguments.config, os.environ)
    settings = settings.model_copy(update={"console": with_listening_options(settings.console, arguments)})
    with opened(settings) as console:
        say(f"the console is at {console.address}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this command
            console.run()
    return 0


@contextmanager
def opened(settings: Config, *, logs_requests: bool = True) -> Iterator["Serving"]:
    """Yields a console that listens for requests (`changelog.connectors.console.serving.serving`).

    In addition to the errors of `serving`, raises ChangelogError (USAGE) if a package of the extra `console` is not
    installed.
    """
    with extra_needed("console", "the console needs {}, which is not installed"):
        from changelog.connectors.console.serving import serving  # noqa: PLC0415
    with serving(settings, logs_requests=logs_requests) as console:
        yield console
