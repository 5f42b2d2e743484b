"""Tests that the stores of Kafka Streams are read under their locks, and that RocksDB writes them to disk."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jpype
import pytest

from changelog.connectors.java.program import find_java
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.connectors.views.streams import java, stores
from changelog.connectors.views.streams.stores import PartitionStore
from changelog.connectors.views.streams.tables import KafkaTables, TablesSettings
from changelog.envelope.model import Op
from tests.integration.kafka.topics import entity, opened, read, store
from tests.patience import until
from tests.servers import fetched
from tests.unit.records import record

TABLE, COUNT = "order", 3
KEYS = [b"%d" % number for number in range(COUNT)]


@pytest.mark.parametrize("on_disk", [True, False], ids=["rocksdb", "in-memory"])
def test_rows_are_read_only_while_no_other_thread_changes_or_closes_their_store(
    settings: KafkaSettings, tmp_path: Path, on_disk: bool
) -> None:
    """The locks are those with which a store of RocksDB is closed, and a store in memory is changed."""
    with opened(settings, entity(TABLE)) as sink:
        store(sink, 1, *(record(Op.CREATE, "{}", key=key.decode(), ordinal=at) for at, key in enumerate(KEYS)))
    rows = [message.value() for message in read(settings, TABLE)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        reads = process.submit(
            reads_while_locked,
            settings.client.bootstrap_servers,
            f"{settings.prefix}.{TABLE}",
            fetched("streams"),
            tmp_path,
            on_disk=on_disk,
        ).result()
    pairs = list(zip(KEYS, rows, strict=True))
    assert reads == [(lock, answer) for lock in range(1 if on_disk else 2) for answer in ((True, rows), (True, pairs))]


def reads_while_locked(
    servers: str, topic: str, jars: Path, folder: Path, *, on_disk: bool
) -> list[tuple[int, tuple[bool, Sequence[object]]]]:
    """Reads a store with each method that reads, while another thread has one of the store's locks.

    Returns for each read the number of the lock, whether the read waited, and what it returned. Then writes the stores
    to disk. Needs a process of its own, because a process can start Java only once.
    """
    java.start(find_java(), jars, heap_mib=128, libraries=folder)
    stores._PAIRS_AT_ONCE = COUNT - 1  # type: ignore[misc]
    settings = TablesSettings(
        bootstrap_servers=servers,
        options={},
        application=topic,
        folder=folder / "stores" if on_disk else None,
        topics={TABLE: topic},
    )
    with closing(KafkaTables(settings)) as tables:
        until(lambda: tables.are_restored(), "the table is restored")
        until(lambda: None not in tables.get_batch(TABLE, 0, KEYS, None), "the table has the rows")
        reads = []
        for number, lock in enumerate(locks(tables, on_disk=on_disk)):
            reads += [
                (number, read_while_locked(lock, lambda: tables.get_batch(TABLE, 0, KEYS, None))),
                (number, read_while_locked(lock, lambda: list(tables.scan(TABLE, 0, b"", None)))),
            ]
        assert not list(folder.rglob("*.sst"))
        tables.flush()
        assert bool(list(folder.rglob("*.sst"))) == on_disk
        return reads


def locks(tables: KafkaTables, *, on_disk: bool) -> Sequence[Any]:
    """Returns the objects whose locks a reader of the store needs."""
    internals = "org.apache.kafka.streams.state.internals"
    class_ = jpype.JClass(f"{internals}.RocksDBStore" if on_disk else f"{internals}.InMemoryKeyValueStore")
    wrapper = PartitionStore(tables._streams, TABLE, 0, standby_too=False, in_memory=True)._get()
    store = wrapper.findInner(class_)
    return [store] if on_disk else [store, store.getPosition()]


def read_while_locked(lock: Any, read_rows: Callable[[], Sequence[object]]) -> tuple[bool, Sequence[object]]:
    """Reads in another thread while this one has Java's lock of an object. Returns whether the reader waited for it,
    and the rows.
    """
    thread_class = jpype.JClass("java.lang.Thread")
    with ThreadPoolExecutor(1) as reader:
        with jpype.synchronized(lock):
            thread = reader.submit(thread_class.currentThread).result()
            rows = reader.submit(read_rows)
            until(lambda: rows.done() or thread.getState() == thread_class.State.BLOCKED, "the reader waits or is done")
            is_waiting = not rows.done()
        return is_waiting, rows.result()
