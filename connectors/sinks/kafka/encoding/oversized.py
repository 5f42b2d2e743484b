"""Cuts messages that are too large for their topic into parts for the topic `<prefix>.dead`, and joins the parts again.

The body of a message is its key followed by its value. The body is cut into parts. Each part is a message of its own:
its key is the position of the original message, and its value is a slice of the body. A part has the headers of the
original message, and also `deadTopic`, `deadPartition`, `deadKeyBytes` (how many bytes of the body are the original
key) and `deadPart` (`2/3` for the second of three parts).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Headers = list[tuple[str, bytes]]

OVERHEAD_BYTES = 512
"""An allowance for the overhead of a message in its batch, and for the headers `dead*`.

By KIP-98, a batch has 61 bytes of overhead, and a record some 30."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """One message as it is sent. `timestamp_ms` is in milliseconds since 1970."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    @property
    def nbytes(self) -> int:
        """An upper bound of the size of a batch with only this message, in bytes."""
        return OVERHEAD_BYTES + len(self.key) + len(self.value or b"") + headers_bytes(self.headers)


def headers_bytes(headers: Headers) -> int:
    """Returns an upper bound of the size of headers in a batch, in bytes."""
    return sum(len(name) + len(value) + 10 for name, value in headers)


def parts(message: ProducerRecord, *, topic: str, position: str, nbytes_max: int) -> Iterator[ProducerRecord]:
    """Cuts a message into parts. Each part is a message to `topic` that has at most `nbytes_max` bytes.

    `position` is the position of the original message's row, as text.
    """
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
        yield ProducerRecord(
            topic=topic,
            partition=0,
            key=position.encode(),
            value=body[number * room : (number + 1) * room],
            headers=[*headers, ("deadPart", b"%d/%d" % (number + 1, count))],
            timestamp_ms=message.timestamp_ms,
        )


def whole(parts: Sequence[ProducerRecord]) -> ProducerRecord:
    """Joins the parts of a message to the original message.

    Raises ValueError if a part is missing, or if the parts are not in order.
    """
    first = parts[0]
    headers = dict(first.headers)
    count = int(headers["deadPart"].partition(b"/")[2])
    if [dict(part.headers)["deadPart"] for part in parts] != [b"%d/%d" % (n + 1, count) for n in range(count)]:
        raise ValueError(f"{len(parts)} of {count} parts were given, or they are not in order")
    body = b"".join(part.value or b"" for part in parts)
    key_nbytes = int(headers["deadKeyBytes"])
    return ProducerRecord(
        topic=headers["deadTopic"].decode(),
        partition=int(headers["deadPartition"]),
        key=body[:key_nbytes],
        value=body[key_nbytes:],
        headers=[(name, value) for name, value in first.headers if not name.startswith("dead")],
        timestamp_ms=first.timestamp_ms,
    )
