"""Counts restored messages, as Kafka Streams reports them to listeners. Any thread may call the methods."""

from changelog.connectors.kafka.offsets import Part


class Restoration:
    """The restoration of the tables of this process.

    Several threads restore, but each partition is restored by one thread at a time.
    """

    def __init__(self) -> None:
        self._messages: dict[Part, int] = {}
        self._ends: dict[Part, int] = {}
        self._left: dict[Part, int] = {}

    def begin(self, part: Part, begin: int, end: int) -> None:
        """Notes that a partition will be restored from one offset to another."""
        self._ends[part], self._left[part] = end, max(end - begin, 0)

    def advance(self, part: Part, last: int, count: int) -> None:
        """Notes that `count` messages were restored, and that the last one has the offset `last`."""
        self._messages[part] = self._messages.get(part, 0) + count
        self._left[part] = max(self._ends.get(part, 0) - last - 1, 0)

    def end(self, part: Part) -> None:
        """Notes that a partition is no longer being restored."""
        self._left.pop(part, None)

    def messages(self) -> int:
        """Returns how many messages were restored since the start."""
        return sum(self._messages.copy().values())

    def left(self) -> int:
        """Returns how many offsets are still to be restored."""
        return sum(self._left.copy().values())
