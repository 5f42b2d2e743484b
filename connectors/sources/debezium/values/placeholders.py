"""Knows the placeholders that Debezium publishes for a value that the database's log did not send.

Debezium's setting `unavailable.value.placeholder` is a text, or bytes as `hex:…`. In a column of bytes, the placeholder
is encoded like the column's values. Arrays, maps and UUIDs have placeholders of other forms.
https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
"""

import base64
import hashlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from changelog.envelope.connect.schema import ConnectSchema

_HEX: Final = "hex:"


class Placeholders:
    """The forms of the placeholder `setting`."""

    def __init__(self, setting: str) -> None:
        content = bytes.fromhex(setting.removeprefix(_HEX)) if setting.startswith(_HEX) else setting.encode()
        self._content = content
        spelled = content.decode("utf-8", "replace")
        self._texts = (
            spelled,
            base64.b64encode(content).decode(),
            base64.urlsafe_b64encode(content).decode(),
            content.hex(),
        )
        # Debezium makes the UUID with java.util.UUID.nameUUIDFromBytes.
        self._uuid = str(uuid.UUID(bytes=hashlib.md5(content, usedforsecurity=False).digest(), version=3))

    def values(self, schema: ConnectSchema) -> Sequence[Any]:
        """Returns the placeholders in a column of this schema, as an Avro decoder returns them."""
        match schema.type:
            case "string":
                spelled = self._texts[0]
                entry = {spelled: spelled}
                return (*self._texts, self._uuid, msgspec.json.encode(entry).decode(), entry)
            case "bytes":
                return (self._content,)
            case "array" if schema.items is not None:
                if schema.items.type in ("int8", "int16", "int32", "int64"):
                    return ([byte - 256 if byte > 127 else byte for byte in self._content],)
                return [[value] for value in self.values(schema.items) if not isinstance(value, dict)]
            case "map" if schema.keys is not None and schema.values is not None and schema.keys.type == "string":
                return [{value: value} for value in self.values(schema.values) if isinstance(value, str)]
        return ()

    @property
    def texts(self) -> Sequence[bytes]:
        """The placeholders in a column of strings, in JSON."""
        return self.tokens(ConnectSchema(type="string"))

    def tokens(self, schema: ConnectSchema) -> Sequence[bytes]:
        """Returns the result of `values` in JSON, where bytes are a string in base64."""
        return [msgspec.json.encode(value) for value in self.values(schema)]
