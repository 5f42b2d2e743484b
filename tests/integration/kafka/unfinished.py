"""Imitates a commit whose end Kafka has marked in the topic `positions`, but not yet in the partitions of the rows.

To do this, a test sends the rows in one transaction and the checkpoint in another. It commits the checkpoint while the
transaction of the rows is still open.
"""

import contextlib
from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaException, Producer

from changelog.connectors.sinks.kafka.encoding.messages import JSON, headers
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.envelope.columnar import batch
from changelog.envelope.model import Op, Record
from tests.integration.kafka.topics import settled
from tests.patience import PATIENCE_S
from tests.unit.records import checkpoint, record

SOURCE = "booking"
"""The name of the source in the rows of `tests.unit.records`."""


def change(commit: int) -> Record:
    return record(Op.CREATE, f'{{"id":{commit}}}', commit=commit, key=str(commit))


@contextlib.contextmanager
def transaction(settings: KafkaSettings, name: str) -> Iterator[Producer]:
    """Yields a producer with an open transaction. Aborts the transaction at the end if it is still open."""
    own_id = f"{settings.prefix}.{name}"
    producer = Producer(settings.client.config(transactional_id=own_id, transaction_timeout_ms=int(PATIENCE_S * 1000)))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    yield producer
    with contextlib.suppress(KafkaException):
        producer.abort_transaction(PATIENCE_S)


def send(producer: Producer, settings: KafkaSettings, records: Sequence[Record]) -> None:
    rows = batch.from_records(records)
    for item, value, item_headers in zip(records, JSON.encode(rows), headers(rows), strict=True):
        producer.produce(f"{settings.prefix}.order", value, item.place.key.encode(), 0, headers=list(item_headers))
    assert producer.flush(PATIENCE_S) == 0


def store_checkpoint(settings: KafkaSettings, commit: int) -> None:
    with transaction(settings, "checkpoint") as producer:
        producer.produce(f"{settings.prefix}.positions", checkpoint(commit).to_json(), settings.name.encode(), 0)
        producer.commit_transaction(PATIENCE_S)
    settled(settings.client, [(f"{settings.prefix}.positions", 0)])
