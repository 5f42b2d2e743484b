"""Messages larger than their topic takes, cut into parts that fit into `<prefix>.dead`, and put together again.

Each part's key is the position of the message. Its headers are the message's own and `deadTopic`, `deadPartition`,
`deadKeyBytes` (how many bytes of the body are the key) and `deadPart` (`2/3`: the second of three). The body is the
key and the value, one behind the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Headers = list[tuple[str, bytes]]

OVERHEAD_BYTES = 512
"""Room for what stands around a message in its batch (KIP-98: 61 bytes a batch, some 30 a record), and for `dead*`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message, as it is sent: `timestamp_ms` since 1970."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def nbytes(self) -> int:
        """Its size in a batch, at most."""
        return OVERHEAD_BYTES + len(self.key) + len(self.value or b"") + headers_bytes(self.headers)


def headers_bytes(headers: Headers) -> int:
    """The size of some headers, at most."""
    return sum(len(name) + len(value) + 10 for name, value in headers)


def parts(message: Message, *, topic: str, position: str, nbytes_max: int) -> Iterator[Message]:
    """The message as messages to `topic`, none larger than `nbytes_max`."""
    headers = [
        *message.headers,
        ("deadTopic", message.topic.encode()),
        ("deadPartition", b"%d" % message.partition),
        ("deadKeyBytes", b"%d" % len(message.key)),
    ]
    room = max(nbytes_max - 2 * OVERHEAD_BYTES - headers_bytes(headers) - len(position), OVERHEAD_BYTES)
    body = message.key + (message.value or b"")
    count = -(-len(body) // room)
    for number in range(count):
        yield Message(
            topic=topic,
            partition=0,
            key=position.encode(),
            value=body[number * room : (number + 1) * room],
            headers=[*headers, ("deadPart", b"%d/%d" % (number + 1, count))],
            timestamp_ms=message.timestamp_ms,
        )


def whole(found: Sequence[Message]) -> Message:
    """The message that was cut into `found`, all its parts in their order. ValueError when one is missing."""
    told = dict(found[0].headers)
    count = int(told["deadPart"].partition(b"/")[2])
    if [dict(part.headers)["deadPart"] for part in found] != [b"%d/%d" % (n + 1, count) for n in range(count)]:
        raise ValueError(f"of {count} parts, {len(found)} are here, or not in their order")
    body = b"".join(part.value or b"" for part in found)
    cut = int(told["deadKeyBytes"])
    return Message(
        topic=told["deadTopic"].decode(),
        partition=int(told["deadPartition"]),
        key=body[:cut],
        value=body[cut:],
        headers=[(name, value) for name, value in found[0].headers if not name.startswith("dead")],
        timestamp_ms=found[0].timestamp_ms,
    )
