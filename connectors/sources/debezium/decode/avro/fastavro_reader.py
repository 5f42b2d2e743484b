"""Decodes values in Avro with fastavro. Its results are correct by definition: the module `reader`, which is faster,
must return the same.

The module `messages` imports this one when the first message in Avro arrives, because fastavro is an optional package.
"""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro

from changelog.connectors.sources.debezium.decode.tables import UNFIT
from changelog.envelope.codec.avro_codec import without_logical_types
from changelog.envelope.errors import ChangelogError, Kind

MALFORMED_SCHEMA = (fastavro.schema.SchemaParseException, *UNFIT)
"""What `plain_schema` and `plain_reader` raise for an invalid schema."""


def plain_schema(schema: Any) -> Any:
    """Returns the schema without its logical types, so that values are read as they are stored."""
    return without_logical_types(schema)


def plain_reader(schema: Any) -> Callable[[bytes, int], Any]:
    """Returns a function that reads the value in the bytes of a message, from an offset to the end of the bytes.

    The function raises ChangelogError (MALFORMED).
    """
    parsed = fastavro.parse_schema(schema)

    def read(content: bytes, start: int) -> Any:
        stream = BytesIO(content)
        stream.seek(start)
        try:
            value = fastavro.schemaless_reader(stream, parsed, None)
        except (EOFError, *UNFIT):
            raise ChangelogError(Kind.MALFORMED, "it is not a value of its Avro schema") from None
        if stream.tell() != len(content):
            raise ChangelogError(Kind.MALFORMED, "it has bytes after its value in Avro")
        return value

    return read
