"""Makes one line that says why the Debezium process ended, from the messages of Debezium, databases and Java."""

import re
import signal
from collections.abc import Sequence

from changelog.connectors.debezium.frames import Cause, End
from changelog.connectors.debezium.launch import Launch
from changelog.envelope.errors import ChangelogError, Kind

OUT_OF_MEMORY = 3
"""With -XX:+ExitOnOutOfMemoryError, Java ends with this exit code when its heap is full."""

LOST_LOG = "the database no longer has the changes after the stored offset, so the tables have to be read again"

RULES: Sequence[tuple[Kind, Sequence[str], str | None]] = (
    (
        Kind.ACCESS,
        (
            *("password authentication failed", "access denied", "login failed", "permission denied"),
            *("no pg_hba.conf entry", "not authorized", "authentication failed"),
        ),
        None,
    ),
    (Kind.IN_USE, ("replication slot .* is active", "same server_uuid/server_id"), None),
    (
        Kind.GAP,
        (
            *("no longer available on the server", "could not find first log file", "purged"),
            *("resume of change stream was not possible", "wal segment .* has already been removed"),
            "can no longer get changes from replication slot",
        ),
        LOST_LOG,
    ),
    (
        Kind.CONNECTION,
        (
            *("connection .*(refused|reset|closed|aborted)", "no route to host", "unknown ?host", "timed? ?out"),
            *("communications link failure", "could not connect", "i/o error", "broken pipe", "eofexception"),
            *("terminating connection", "the database system is", "socketexception", "name or service not known"),
            *("nontransientconnection", "server is not connected", "tcp/ip connection to the host .* has failed"),
        ),
        None,
    ),
    (Kind.USAGE, ("configuration is not valid", "configexception", "invalid configuration"), None),
)
"""Kinds of errors, each with the patterns that identify it in an error's causes, and a hint. The first match counts."""

_WRAPPER = re.compile(r"^(Failed to start connector|An exception occurred in the change event)")
"""Messages that say only that something failed, not why."""

_GENERAL = ("Error occurred during init", "Error: Could not create the Java", "Error: A fatal exception")
"""The beginnings of lines by which Java says that it did not start; the next line says why."""

_INVALID = "Connector configuration is not valid. "
_PACKAGE = re.compile(r"\b(?:[a-z]\w*\.)+(?=[A-Z]\w*(?:Exception|Error)\b)")


def failure(
    launch: Launch, end: End | None, code: int | None, errors: Sequence[str], logged: Sequence[str]
) -> ChangelogError:
    """Returns the error for an engine that failed.

    `end` is the engine's last frame, if it sent one. `code` is the exit code of the process: negative for a signal,
    None if the process hangs. `errors` are the last lines of the process's standard error. `logged` are the causes of
    the last errors in Debezium's log.
    """
    if end is not None:
        return _of_engine(launch, end, logged)
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return ChangelogError(
            Kind.CONNECTION,
            f"the Debezium process was killed ({name})",
            hint="the system may have run out of memory: see its log" if name == "SIGKILL" else None,
        )
    if code == OUT_OF_MEMORY or any("OutOfMemoryError" in line for line in errors):
        return ChangelogError(
            Kind.LIMIT,
            f"the Debezium process needs more than its heap of {launch.heap_mib} MiB",
            hint="raise heap_mib, or lower the connector's max.queue.size and max.batch.size",
        )
    messages = [line for line in errors if not line.startswith(_GENERAL)] or ["it printed nothing"]
    reason = next((line for line in messages if re.search(r"Error|Exception", line)), messages[0])
    return ChangelogError(Kind.PRECONDITION, f"the Debezium process ended with exit code {code}: {reason}")


def _of_engine(launch: Launch, end: End, logged: Sequence[str]) -> ChangelogError:
    causes = end.causes or (Cause(name="", message=end.message),)
    class_errors = ("ClassNotFoundException", "NoClassDefFoundError")
    missing_class = next((cause for cause in causes if cause.name.endswith(class_errors)), None)
    if missing_class is not None:
        return _missing_class(launch, missing_class)
    message = _message(causes)
    if message.endswith(":") and logged:  # Debezium left the cause out of the error, but logged it
        message = f"{message} {logged[-1]}"
    text = " ".join([message, *(f"{cause.name} {cause.message}" for cause in causes)])
    if causes[0].message.startswith(_INVALID):  # the message hides whether a connection failed; the log says it
        text = " ".join([text, *logged])
    kind, hint = next(
        ((kind, hint) for kind, patterns, hint in RULES if re.search("|".join(patterns), text, re.IGNORECASE)),
        (Kind.PRECONDITION, None),
    )
    return ChangelogError(kind, f"Debezium: {message}", hint=hint)


def _missing_class(launch: Launch, cause: Cause) -> ChangelogError:
    name = cause.message.replace("/", ".")
    if name == launch.properties["connector.class"]:
        return ChangelogError(
            Kind.PRECONDITION,
            f"the connector class {name} is not in the jars in {launch.jars}",
            hint="`changelog debezium install CONNECTOR` fetches a connector with all its jars",
        )
    return ChangelogError(
        Kind.PRECONDITION,
        f"the class {name} is not in the jars in {launch.jars}",
        hint="all jars of Debezium must have one version; `changelog debezium install` fetches a complete set",
    )


def _message(causes: Sequence[Cause]) -> str:
    """Returns the root cause's message.

    If exceptions around the root cause say more than that something failed, the message of the innermost of these comes
    first.
    """
    messages = [_PACKAGE.sub("", cause.message.removeprefix(_INVALID)) for cause in causes]
    root = messages.pop() or causes[-1].name.rpartition(".")[2]
    outer = [message.rstrip(":") for message in messages if message and not _WRAPPER.match(message)]
    if not outer:
        return root
    return outer[-1] if root in outer[-1] else f"{outer[-1]}: {root}"
