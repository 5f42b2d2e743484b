"""`changelog views serve`: serves the present state of each row, until it is interrupted."""

import argparse
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

from changelog.connectors import config
from changelog.connectors.commands.listening import add_listening_arguments, with_listening_options
from changelog.connectors.config import ServeConfig
from changelog.connectors.extras import extra_needed
from changelog.connectors.terminal import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog views serve`."""
    add_listening_arguments(parser, "serve", ServeConfig().port)
    parser.add_argument(
        "--archive", type=Path, metavar="FOLDER", help="read this archive or file log instead of [sink] path"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Serves views until SIGINT or SIGTERM."""
    settings = config.load(arguments.config, os.environ)
    settings = settings.model_copy(update={"serve": with_listening_options(settings.serve, arguments)})
    with extra_needed("console", "serving views needs {}, which is not installed"):
        from changelog.connectors.views.serving import serving_views  # noqa: PLC0415
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        with serving_views(settings, archive=arguments.archive, logs_requests=arguments.verbose) as server:
            say(f"views are served at {server.address}; Ctrl-C ends it")
            with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this command
                server.run()
    except _TerminatedError:  # by now, everything is closed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


class _TerminatedError(BaseException):
    """Raised at SIGTERM. It does not derive from Exception, so no `except Exception` catches it."""


def _terminate(_number: int, _frame: FrameType | None) -> None:
    raise _TerminatedError
