"""Configures logs: readable lines on a terminal, otherwise one JSON object per line.

Event names are lowercase, and details are fields. Row values and secrets are never logged. Loggers come from
`structlog.get_logger()`.
"""

import logging
from typing import Any, TextIO

import structlog

from changelog.connectors.terminal import safe

CLEAR_LINE = "\r\x1b[2K"


def configure(stream: TextIO, *, verbose: bool) -> None:
    """Sends the log events of this process to `stream`. Drops events of the level *debug* unless `verbose`."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *(_for_a_person() if stream.isatty() else _for_a_machine()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if verbose else logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )


def _harmless(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes control characters: the log quotes servers' messages, and these contain names that anybody may choose."""
    return {name: safe(value) if isinstance(value, str) else value for name, value in event.items()}


def _for_a_person() -> list[structlog.typing.Processor]:
    return [
        structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
        _harmless,
        # The rich traceback would print local variables, and with them rows and secrets.
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback, pad_event_to=36),
        _over_a_bar,
    ]


def _over_a_bar(_logger: Any, _method: str, line: Any) -> str:
    """Overwrites a progress bar with the log line. The program then draws the bar again, below the line."""
    return f"{CLEAR_LINE}{line}"


def _for_a_machine() -> list[structlog.typing.Processor]:
    return [
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(default=str),
    ]
