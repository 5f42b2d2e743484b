"""Compresses Debezium's history of schemas. It must be small, because each commit stores it as part of a checkpoint."""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence

from changelog.envelope.errors import ChangelogError, Kind

BYTES_MAX = 512 << 10
"""The history takes up at most this many bytes of a checkpoint. In Kafka, a checkpoint is one message, by default of at
most 1 MiB.
"""


def packed(records: Sequence[bytes]) -> str:
    """Returns the text that a checkpoint stores. Raises ChangelogError (LIMIT) if the text is too long."""
    text = b64encode(zlib.compress(b"\n".join(records))).decode() if records else ""
    if len(text) > BYTES_MAX:
        raise ChangelogError(
            Kind.LIMIT,
            f"Debezium's history of schemas takes up {len(text)} bytes when compressed, but a checkpoint has room for "
            f"{BYTES_MAX}",
            hint="publish fewer tables with one service, so that the history has fewer tables",
        )
    return text


def unpacked(text: str) -> list[bytes]:
    """Returns the records from the result of `packed`. Each is JSON without a line break."""
    return zlib.decompress(b64decode(text)).split(b"\n") if text else []
