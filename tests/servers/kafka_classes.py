"""Writes an archive of the classes that a Kafka broker loads. Java maps the archive into memory, so a broker starts in
half the CPU time.

`make` runs this module once. Java ignores the archive after Kafka's jars or Java itself have changed.
"""

import shutil
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from changelog.connectors.servers.kafka import BRIEF, CLASSES, Broker
from changelog.connectors.servers.unprivileged import reachable, temporary_folder
from tests.patience import PATIENCE_S


def use(servers: str) -> None:
    """Makes the broker load the classes that topics, transactions and consumer groups need."""
    topic = NewTopic("t", 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([topic]).values():
        created.result()
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "writer", "log_level": 3})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"value", b"key")
    producer.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    consumer.consume(1, PATIENCE_S)
    consumer.close()


def main(lib: Path) -> None:
    """Writes the archive beside the folder of jars `lib`. Exits with an error if Java wrote none."""
    archive = lib.with_name(CLASSES)
    archive.unlink(missing_ok=True)
    with temporary_folder("changelog-classes-") as folder:
        new_archive = folder / CLASSES
        # Java cannot archive some classes, and would print a warning for each of them.
        options = (*BRIEF, f"-XX:ArchiveClassesAtExit={new_archive}", "-Xlog:disable")
        with Broker(reachable(lib, folder), folder / "kafka", java=options) as broker:
            use(broker.bootstrap_servers)
        if not new_archive.exists():
            sys.exit(f"Java wrote no archive {archive}")
        shutil.copyfile(new_archive, archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
