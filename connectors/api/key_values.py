"""Makes the text of a key from Python values."""

import base64
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from numbers import Integral, Real
from uuid import UUID

import numpy as np

from changelog.envelope.codec import floats
from changelog.envelope.errors import ChangelogError, Kind

KeyValue = str | int | float | bool | Decimal | UUID | date | datetime | time | bytes
"""A value of a key column. A `datetime` without a zone is a timestamp without a time zone."""

Key = KeyValue | Sequence[KeyValue]
"""A key: the value of its only column, or a tuple or list with the values of all its columns, in the key's order."""


def key_texts(key: Key) -> list[str]:
    """Returns the canonical text of each value of a key. `changelog.envelope.key.key_text` joins these texts.

    Raises ChangelogError (USAGE) for a value that a key cannot have.
    """
    values = key if isinstance(key, list | tuple) else [key]
    if not values:
        raise ChangelogError(Kind.USAGE, "the key has no value", hint="give a value for each column of the key")
    return [_text(value) for value in values]


def _text(value: object) -> str:
    """Returns the canonical text of a value (docs/reference/types.md)."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Integral():
            return str(int(value))
        case Decimal():
            return format(value, "f")
        case Real():
            return floats.token(float(value), single=isinstance(value, np.float32)).decode().strip('"')
        case datetime(tzinfo=None):
            return value.isoformat(timespec="microseconds")
        case datetime():
            return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case date() | UUID():
            return str(value)
        case time(tzinfo=None, microsecond=0):
            return value.isoformat()
        case time(tzinfo=None):
            return value.isoformat().rstrip("0")
        case bytes():
            return base64.b64encode(value).decode()
    raise ChangelogError(
        Kind.USAGE,
        f"a key cannot have a value of the type {type(value).__name__}",
        hint="give its canonical text instead (docs/reference/types.md)",
    )
