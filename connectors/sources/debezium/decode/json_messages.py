"""Separates the schema of a message in JSON from its content, without reading the same schema twice.

The JsonConverter writes `{"schema":…,"payload":…}`. Messages of one table have the same schema. So most messages have
the same bytes before the payload as an earlier message of their topic. These bytes are compared, and not parsed again.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import UnsetType

from changelog.connectors.sources.debezium.decode import schemas
from changelog.connectors.sources.debezium.decode.layouts import Layout
from changelog.connectors.sources.debezium.decode.payloads import outers
from changelog.connectors.sources.debezium.decode.tables import UNFIT
from changelog.envelope.errors import ChangelogError, Kind

PREFIXES_MAX: Final = 4
"""How many schemas are remembered for a topic."""

LAYOUTS_MAX: Final = 4096
"""How many schemas are remembered in all."""

_BETWEEN: Final = b',"payload":'
MEMBER: Final = b'"payload"'


T = TypeVar("T")


class JsonSplitter:
    """Splits messages in JSON. `plain` is the layout of messages without a schema."""

    def __init__(self) -> None:
        self.plain = Layout.of(None)
        self._prefixes: dict[str, list[tuple[bytes, Layout]]] = {}
        self._layouts: dict[bytes, Layout] = {}

    def split(self, topic: str, content: bytes, accept: Callable[[bytes | memoryview], T]) -> tuple[Layout, T]:
        """Returns the layout of a message, and the result of `accept` for the message's payload.

        `accept` raises msgspec.DecodeError if the payload is not JSON. Raises ChangelogError (MALFORMED), or what
        `accept` raises.
        """
        for prefix, layout in self._prefixes.get(topic, ()):
            if content.startswith(prefix):
                try:
                    return layout, accept(memoryview(content)[len(prefix) : -1])
                except msgspec.DecodeError:
                    break  # perhaps there are members after the payload
        if MEMBER not in content:
            return self.plain, accept(content)
        outer = outers.decode(content)
        if isinstance(outer.schema, UnsetType) or isinstance(outer.payload, UnsetType):
            return self.plain, accept(content)
        schema = bytes(outer.schema)
        layout = self.layout(schema)
        self._remember(topic, content, schema, bytes(outer.payload), layout)
        return layout, accept(bytes(outer.payload))

    def layout(self, schema: bytes) -> Layout:
        """Returns the layout of a schema in JSON. Raises ChangelogError (MALFORMED)."""
        layout = self._layouts.get(schema)
        if layout is None:
            if schema == b"null":
                return self.plain
            try:
                layout = Layout.of(schemas.from_json(msgspec.json.decode(schema)))
            except UNFIT:
                raise ChangelogError(
                    Kind.MALFORMED, "the schema inside a message is not a schema of Kafka Connect"
                ) from None
            if len(self._layouts) >= LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[schema] = layout
        return layout

    def _remember(self, topic: str, content: bytes, schema: bytes, payload: bytes, layout: Layout) -> None:
        prefix = b'{"schema":' + schema + _BETWEEN
        if content.startswith(prefix) and content[len(prefix) :] == payload + b"}":
            prefixes = self._prefixes.setdefault(topic, [])
            prefixes.insert(0, (prefix, layout))
            del prefixes[PREFIXES_MAX:]


def check_utf8(content: bytes) -> None:
    """Raises UnicodeDecodeError unless the content is UTF-8. Nothing else checks this, as values are not decoded."""
    if not content.isascii():
        content.decode()
