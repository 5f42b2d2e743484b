"""Makes the arguments of `Producer.produce` from rows, and sets aside messages that are too large for their topic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks.kafka.admin.names import dead_topic
from changelog.connectors.sinks.kafka.admin.send_messages import ProduceCall
from changelog.connectors.sinks.kafka.admin.topics import MESSAGE_BYTES_DEFAULT
from changelog.connectors.sinks.kafka.encoding import oversized
from changelog.connectors.sinks.kafka.encoding.messages import KEY, ValueCodec
from changelog.envelope.checkpoint import Decisions
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position

_DELETE = pa.scalar(Op.DELETE.value)


class ProduceCalls:
    """Makes produce calls for the topics of `prefix`. `topic_of` returns the present topic of an entity.

    `client_limit` is the size of the largest message that the client accepts, in bytes; None if it accepts all.
    `on_too_large` is the policy for messages that are too large for the client or the topic.
    """

    def __init__(
        self,
        values: ValueCodec,
        topic_of: Callable[[str], str],
        *,
        prefix: str,
        client_limit: int | None,
        on_too_large: str,
    ) -> None:
        self._values, self._topic_of, self._prefix = values, topic_of, prefix
        self._client_limit, self._on_too_large = client_limit, on_too_large
        self.limits: Mapping[str, int] = {}
        """Maps topics to the size of the largest message that they accept, in bytes. Other topics have the default."""

    def limit(self, name: str) -> int:
        """Returns the size of the largest message that both the topic and the client accept, in bytes."""
        topic_limit = self.limits.get(name, MESSAGE_BYTES_DEFAULT)
        return topic_limit if self._client_limit is None else min(topic_limit, self._client_limit)

    def of_rows(self, batch: pa.RecordBatch, decisions: Decisions) -> list[ProduceCall]:
        """Returns the arguments of `Producer.produce` for each row's message, and for the tombstone after a delete.

        `decisions` are those that an operator made about single messages (`changelog accept`). Raises ChangelogError
        (STOP) if a message is too large, there is no decision on it, and the policy is to stop.
        """
        messages = self._values.messages(batch)
        if not (batch := messages.rows).num_rows:
            return []
        entities = batch.column("entity").dictionary_encode()
        names = [self._topic_of(entity) for entity in entities.dictionary.to_pylist()]
        calls: list[ProduceCall] = list(
            zip(
                map(names.__getitem__, entities.indices.tolist()),
                messages.values,
                messages.keys,
                batch.column("partition").to_pylist(),
                repeat(None),
                repeat(None),
                (batch.column("committed_at").cast(pa.int64()).to_numpy() // 1000).tolist(),
                messages.headers,
            )
        )
        if oversized.OVERHEAD_BYTES + messages.nbytes_max > min(self.limit(name) for name in names):
            rows = zip(calls, batch.column("op").to_pylist(), batch.column("position").to_pylist(), strict=True)
            return [call for row in rows for call in self._fitting(*row, decisions)]
        for index in reversed(pc.indices_nonzero(pc.equal(batch.column("op"), _DELETE)).to_pylist()):
            calls[index + 1 : index + 1] = self._tombstone(calls[index])
        return calls

    def _fitting(self, row: ProduceCall, op: str, position: str, decisions: Decisions) -> Iterator[ProduceCall]:
        """Yields the message of a row, and for a delete a tombstone after it.

        In place of a message that is too large, it yields the message's parts for the topic of dead letters, or nothing
        if the decision is `skip`.
        """
        name, value, key, partition, _, _, at_ms, row_headers = row
        message = oversized.ProducerRecord(
            topic=name, partition=partition, key=key, value=value, headers=row_headers, timestamp_ms=at_ms
        )
        if message.nbytes <= self.limit(name):
            yield row
        elif self._decision(message, op, position, decisions) == "dead-letter":
            dead = dead_topic(self._prefix)
            for part in oversized.parts(message, topic=dead, position=position, nbytes_max=self.limit(dead)):
                yield part.topic, part.value, part.key, part.partition, None, None, at_ms, part.headers
        if op == Op.DELETE:
            yield from self._tombstone(row)

    def _tombstone(self, row: ProduceCall) -> Sequence[ProduceCall]:
        """Returns the tombstone of a deleted key, which lets compaction remove the key.

        Returns nothing for a dead letter, or if the message of the row is a tombstone itself.
        """
        name, value, *rest, row_headers = row
        if value is None or name == dead_topic(self._prefix):
            return []
        return [(name, None, *rest, [header for header in row_headers if header[0] != KEY])]

    def _decision(self, message: oversized.ProducerRecord, op: str, position: str, decisions: Decisions) -> str:
        """Returns what to do with an oversized message: `dead-letter` or `skip`.

        An operator's decision on the message overrides the policy. Raises STOP if there is no decision, and the policy
        is to stop.
        """
        at = Position.parse(position)
        decision = decisions.at(at)
        if decision in ("skip", "dead-letter"):
            return decision
        if self._on_too_large == "dead-letter":
            return "dead-letter"
        choices: tuple[str, ...] = ("skip", "dead-letter")
        remedy = f"`changelog accept {position} --as skip|dead-letter`"
        if op == Op.READ:  # a decision is for one position, and each reading of the table gives the row a new position
            choices = ()
            remedy = 'set [sink] on_too_large = "dead-letter" until the table is read'
        limit = self.limit(message.topic)
        limiter, setting = "the topic", "max.message.bytes of the topic"
        if limit == self._client_limit:
            limiter, setting = "[sink] client", f"message.max.bytes in [sink] client, and {setting}"
        raise ChangelogError(
            Kind.STOP,
            f"a message to topic {message.topic} has {message.nbytes} bytes, and {limiter} takes at most {limit}",
            hint=f"raise {setting}, or {remedy}",
            position=at,
            choices=choices,
        )
