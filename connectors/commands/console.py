"""`changelog console`: serves pages that show the changelog in a browser, until it is interrupted."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from changelog.connectors import config
from changelog.connectors.config import Config
from changelog.connectors.config.console import TOKEN_CHARS_MIN
from changelog.connectors.extras import extra_needed
from changelog.connectors.terminal import say
from changelog.envelope.errors import ChangelogError, Kind

if TYPE_CHECKING:
    from changelog.connectors.console.serving import Serving


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog console`."""
    parser.add_argument("--host", metavar="HOST", help="listen at this address; default: [console] host, or 127.0.0.1")
    parser.add_argument("--port", type=_port, metavar="PORT", help="default: [console] port, or 9465; 0: any free port")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="require the token in this file from everybody who opens a page"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Serves the pages until SIGINT or SIGTERM."""
    settings = with_options(config.load(arguments.config, os.environ), arguments)
    with opened(settings) as console:
        say(f"the console is at {console.address}; Ctrl-C ends it")
        with suppress(KeyboardInterrupt):  # Ctrl-C is the usual way to end this command
            console.run()
    return 0


@contextmanager
def opened(settings: Config, *, logs_requests: bool = True) -> Iterator["Serving"]:
    """Yields a console that listens. Does what `changelog.connectors.console.serving.serving` does, with its errors.

    Also raises ChangelogError (USAGE) if a package of the extra `console` is not installed.
    """
    with extra_needed("console", "the console needs {}, which is not installed"):
        from changelog.connectors.console.serving import serving  # noqa: PLC0415
    with serving(settings, logs_requests=logs_requests) as console:
        yield console


def with_options(settings: Config, arguments: argparse.Namespace) -> Config:
    """Returns the configuration in which the options replace settings of the section [console]."""
    options: dict[str, Any] = {
        **({} if arguments.host is None else {"host": arguments.host}),
        **({} if arguments.port is None else {"port": arguments.port}),
        **({} if arguments.token_file is None else {"token": _token(arguments.token_file)}),
    }
    return settings.model_copy(update={"console": settings.console.model_copy(update=options)})


def _token(file: Path) -> str:
    """Returns the token in a file. No error contains the token."""
    try:
        token = file.read_text("utf-8").strip()
    except OSError as error:
        raise ChangelogError(Kind.USAGE, f"{file} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ChangelogError(Kind.USAGE, f"{file} is not UTF-8") from error
    if len(token) < TOKEN_CHARS_MIN:
        hint = f"make one: `openssl rand -hex 24 > {file}`"
        raise ChangelogError(Kind.USAGE, f"the token in {file} has fewer than {TOKEN_CHARS_MIN} characters", hint=hint)
    return token


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text}: must be a port, 0 to 65535")
    return int(text)
