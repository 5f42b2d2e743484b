"""Tests readers that read up to a checkpoint. They must return all rows up to the checkpoint, even if Kafka has not yet
marked the end of a transaction in every partition.

Kafka acknowledges a commit, and then marks its end in one partition after another. The first test shows this with two
brokers. The second broker replicates the topic of the rows, but not the topic `positions`, which has the checkpoints.
While the test pauses this broker, readers see the end of the transaction in `positions`, but not yet among the rows.
The other tests imitate this state with two transactions (see `unfinished.py`).
"""

import os
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
from confluent_kafka.admin import NewTopic

from changelog.connectors.kafka.client import Admin, Client
from changelog.connectors.kafka.offsets import ends, written_ends
from changelog.connectors.servers.kafka import Broker
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from changelog.connectors.sinks.kafka.encoding.messages import JSON
from changelog.connectors.sinks.kafka.reading import complete_ends
from changelog.connectors.sinks.kafka.reading.log import KafkaLog
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Record
from tests.integration.kafka.topics import opened, settled, store
from tests.integration.kafka.unfinished import SOURCE, change, send, store_checkpoint, transaction
from tests.patience import PATIENCE_S, until
from tests.servers import kafka_lib
from tests.unit.records import checkpoint

TOO_EARLY_S = 3.0
"""A reader that does not wait would return within this time, which is too early. After this time, a correct reader is
still waiting.
"""


@pytest.fixture
def settings(broker: Broker, own_name: str) -> KafkaSettings:
    return KafkaSettings(client=Client(bootstrap_servers=broker.bootstrap_servers), name=SOURCE, prefix=own_name)


def log_of(settings: KafkaSettings) -> KafkaLog:
    return KafkaLog(settings.client, JSON, prefix=settings.prefix, name=settings.name)


def read(log: KafkaLog) -> list[int]:
    return [
        item.envelope.provenance.source.position.commit
        for rows in log.read(entity="order")
        for item in batch.records(rows)
    ]


def in_sync(admin: Admin, part: tuple[str, int]) -> list[int]:
    """Returns the in-sync replicas of a partition. Readers see the end of a commit only after all these replicas have
    it.
    """
    topic, number = part
    partition = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions.get(number)
    # Until a broker knows a new topic, it lists no partitions.
    return [] if partition is None else list(partition.isrs)


def stored_commit(log: KafkaLog) -> int:
    stored = log.checkpoint()
    return 0 if stored is None or stored.position is None else stored.position.commit


def pause(pid: int) -> None:
    """Pauses a child process. Returns after all its threads have stopped.

    The signal alone is not enough: until a thread gets a processor and handles the signal, other threads of the process
    continue.
    """
    os.kill(pid, signal.SIGSTOP)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "the process has ended"


def test_a_reader_waits_until_kafka_has_marked_the_commit_among_the_rows(starts_servers: None) -> None:
    long_timeouts = {"broker.session.timeout.ms": "300000", "replica.lag.time.max.ms": "300000"}
    with temporary_folder("changelog-kafka-") as folder, ThreadPoolExecutor(1) as pool:
        lib = reachable(kafka_lib(), folder)
        with Broker(lib, folder / "first", heap="256m", settings=long_timeouts) as first:
            client = Client(bootstrap_servers=first.bootstrap_servers)
            with opened(KafkaSettings(client=client, name=SOURCE, prefix="early")):
                pass  # creates the topic of transaction states on the first broker
            with Broker(lib, folder / "second", heap="256m", settings=long_timeouts, joins=first) as second:
                settings, part = KafkaSettings(client=client, name=SOURCE, prefix="late"), ("late.order", 0)
                admin = client.admin()
                until(
                    lambda: len(admin.list_topics(timeout=PATIENCE_S).brokers) == 2,
                    "the second broker does not register",
                )
                replicas = {"late.positions": [1], "late.order": [1, 2]}
                new_topics = [NewTopic(name, 1, replica_assignment=[nodes]) for name, nodes in replicas.items()]
                for future in admin.create_topics(new_topics).values():
                    future.result()
                until(lambda: len(in_sync(admin, part)) == 2, "the second broker does not follow the first one")
                with opened(settings) as sink:
                    store(sink, 1, change(1))
                    settled(client, [part, ("late.positions", 0)])
                    ends_before = written_ends(admin, [part])
                    sink.add([batch.from_records([change(2)])])
                    until(lambda: written_ends(admin, [part]) != ends_before, "the row does not arrive")
                    pause(second.pid)
                    try:
                        sink.commit(checkpoint(2))
                        log = log_of(settings)
                        until(lambda: stored_commit(log) == 2, "readers do not see the checkpoint")
                        assert ends(admin, [part]) != written_ends(admin, [part])
                        read_task = pool.submit(read, log)
                        wait([read_task], TOO_EARLY_S)
                    finally:
                        os.kill(second.pid, signal.SIGCONT)
                    assert read_task.result(PATIENCE_S) == [1, 2]


def test_a_reader_waits_for_a_row_of_the_checkpoint(settings: KafkaSettings) -> None:
    log = log_of(settings)
    with opened(settings) as sink:
        store(sink, 1, change(1))
    with transaction(settings, "rows") as rows, ThreadPoolExecutor(1) as pool:
        send(rows, settings, [change(2)])
        store_checkpoint(settings, 2)
        assert stored_commit(log) == 2
        read_task = pool.submit(read, log)
        wait([read_task], TOO_EARLY_S)
        rows.commit_transaction(PATIENCE_S)
        assert read_task.result(PATIENCE_S) == [1, 2]


def test_a_reader_does_not_wait_for_rows_after_the_checkpoint(settings: KafkaSettings) -> None:
    """Rows after the checkpoint are in open transactions of other producers, or in a transaction that the service has
    not committed yet.
    """
    with opened(settings) as sink:
        store(sink, 1, change(1))
        with transaction(settings, "others") as others:
            others.produce(f"{settings.prefix}.order", b"{}", b"1", 0)
            others.produce(f"{settings.prefix}.order", b"{}", b"1", 0, headers=[("position", b"7")])
            send(others, settings, [of_another_source(change(1))])
            sink.add([batch.from_records([change(2)])])
            assert read(log_of(settings)) == [1]


def test_committed_rows_after_an_endless_transaction_are_an_error(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complete_ends, "WAIT_S", 1.0)
    log = log_of(settings)
    with opened(settings) as sink, transaction(settings, "others") as others:
        store(sink, 1, change(1))
        settled(settings.client, [(f"{settings.prefix}.order", 0)])
        others.produce(f"{settings.prefix}.order", b"{}", b"1", 0)
        assert others.flush(PATIENCE_S) == 0
        assert read(log) == [1]
        store(sink, 2, change(2))
        until(lambda: stored_commit(log) == 2, "readers do not see the checkpoint")
        with pytest.raises(ChangelogError) as caught:
            read(log)
        assert caught.value.kind is Kind.CONNECTION
        assert str(caught.value).startswith(
            f"reading topic {settings.prefix}.order, partition 0: a transaction has been open at offset 2 for 1 s, "
            "before rows that are committed; "
        )
        others.abort_transaction(PATIENCE_S)
        assert read(log) == [1, 2]


def of_another_source(item: Record) -> Record:
    provenance = item.envelope.provenance
    source = replace(provenance.source, name="other")
    return replace(item, envelope=replace(item.envelope, provenance=replace(provenance, source=source)))
