"""Makes the errors that say why the changelog cannot answer a question about a key."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from changelog.connectors.history.moments import Moment
from changelog.connectors.sinks import Log
from changelog.connectors.terminal import safe
from changelog.envelope.codec.json_codec import time_text
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Record, position_of


def no_change(log: Log, entity: str, key: str) -> ChangelogError:
    """Returns the error for a key that has no change in the changelog.

    If the key has fewer or more values than the entity's key has columns, the error says so.
    """
    checkpoint = log.checkpoint()
    columns: Sequence[str] = () if checkpoint is None else checkpoint.settings.get(entity, {}).get("key", ())
    count = len(_values(key))
    if columns and len(columns) != count:
        noun = "column" if len(columns) == 1 else "columns"
        return ChangelogError(
            Kind.USAGE,
            f"the key of the entity {entity} has {len(columns)} {noun}, not {count}",
            hint=f"give the values of {', '.join(columns)}, in this order",
        )
    return ChangelogError(Kind.USAGE, f"{log.where} has no change of {entity} {safe(key)}")


def not_yet(log: Log, entity: str, key: str, at: Moment, first: Record) -> ChangelogError:
    """Returns the error for a moment before the `first` change of a key."""
    began = time_text(first.envelope.provenance.source.committed_at)
    return ChangelogError(
        Kind.USAGE,
        f"{log.where} has no change of {entity} {safe(key)} up to {moment_text(at)}",
        hint=f"its first change is at {position_of(first)}, {began}",
    )


def moment_text(at: Moment) -> str:
    """Returns a moment in a form that the command line accepts."""
    return time_text(at) if isinstance(at, datetime) else str(at)


def _values(key: str) -> Sequence[str]:
    """Returns the values from which `changelog.envelope.key.key_text` made the text of a key."""
    try:
        values = msgspec.json.decode(key, type=list[str])
    except ValueError:
        return [key]
    return values if len(values) > 1 else [key]
