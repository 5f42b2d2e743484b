"""Adds the options of commands that serve HTTP: where to listen, and the token that clients must send."""

import argparse
from pathlib import Path
from typing import Any, TypeVar

from changelog.connectors.config import WebConfig
from changelog.connectors.config.web import TOKEN_CHARS_MIN
from changelog.envelope.errors import ChangelogError, Kind

AnyWebConfig = TypeVar("AnyWebConfig", bound=WebConfig)


def add_listening_arguments(parser: argparse.ArgumentParser, section: str, port: int) -> None:
    """Adds options that override keys in a section of the configuration; `port` is the default port of this section."""
    parser.add_argument(
        "--host", metavar="HOST", help=f"listen at this address; default: [{section}] host, or 127.0.0.1"
    )
    parser.add_argument(
        "--port", type=_port, metavar="PORT", help=f"default: [{section}] port, or {port}; 0: any free port"
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="require the token in this file from every client"
    )


def with_listening_options(settings: AnyWebConfig, arguments: argparse.Namespace) -> AnyWebConfig:
    """Returns a copy of the section `settings`. In the copy, the options that were given replace the section's values.

    Raises ChangelogError (USAGE) if the file that `--token-file` names cannot be read, or its token is too short.
    """
    options: dict[str, Any] = {
        **({} if arguments.host is None else {"host": arguments.host}),
        **({} if arguments.port is None else {"port": arguments.port}),
        **({} if arguments.token_file is None else {"token": _token(arguments.token_file)}),
    }
    return settings.model_copy(update=options)


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
