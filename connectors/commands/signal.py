"""`changelog signal`: pauses or resumes the reading of tables, or cancels repairs."""

import argparse
import os
import secrets
from contextlib import closing
from dataclasses import replace
from functools import partial

from changelog.connectors import config
from changelog.connectors.capture.tables.repairs import Repairs, cancel
from changelog.connectors.commands import signalling
from changelog.connectors.commands.accept import refuse_unready
from changelog.connectors.config import Config
from changelog.connectors.wiring.sinks import open_sink
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.signal import Signal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `changelog signal`."""
    parser.add_argument(
        "do",
        choices=("pause", "resume", "cancel"),
        help="pause: stop reading tables, while streaming continues; resume: continue reading tables; cancel: give up "
        "repairs",
    )
    parser.add_argument("entity", nargs="?", metavar="ENTITY", help="only the table of this entity; default: all")
    signalling.add_arguments(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Sends the signal to the service, and waits until the service has obeyed it."""
    settings = config.load(arguments.config, os.environ)
    unread = partial(_cancel_stored, settings) if arguments.do == "cancel" else None
    return signalling.ask(settings, arguments, arguments.do, arguments.entity, unread=unread)


def _cancel_stored(settings: Config, signal: Signal) -> None:
    """Cancels the repairs in the checkpoint of a stopped service.

    Otherwise the service would continue these repairs at its next start, before it reads `signal` in the log. The
    cancellation is stored under another id, because the service skips a signal whose id is in the checkpoint. So the
    service still obeys `signal`, and then also cancels repairs that were requested before `signal` but are not in the
    checkpoint yet.

    The service may be running after all, and only waiting for its connection to the database. Such a service answers at
    its address, or holds the lock of its files. So the checks here raise IN_USE. This function ignores that error and
    stores nothing, because the service will read `signal` later.
    """
    try:
        refuse_unready(settings)
        with closing(open_sink(settings)) as sink:
            checkpoint = sink.recover()
            assert checkpoint is not None
            repairs = Repairs.parse(checkpoint.repairs)
            remaining, windows = cancel(repairs, checkpoint.windows, signal.entity, secrets.token_hex(8))
            sink.commit(replace(checkpoint, repairs=remaining.to_json(), windows=windows))
    except ChangelogError as error:
        if error.kind is not Kind.IN_USE:
            raise
