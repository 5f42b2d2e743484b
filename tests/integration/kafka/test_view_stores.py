"""Tests that a store of Kafka Streams cannot be closed while one of its rows is read.

Also tests that the entries are counted which RocksDB has only in memory.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jpype

from changelog.connectors.java.program import find_java
from changelog.connectors.sinks.kafka.sink import KafkaSettings
from changelog.connectors.views.streams import java
from changelog.connectors.views.streams.folder import Memtables
from changelog.connectors.views.streams.stores import Stores
from changelog.connectors.views.streams.tables import KafkaTables, TablesSettings
from changelog.envelope.model import Op
from tests.integration.kafka.topics import entity, opened, read, store
from tests.patience import until
from tests.servers import fetched
from tests.unit.records import record

TABLE, KEY = "order", b"42"


def test_a_row_is_read_only_with_the_lock_with_which_rocksdb_is_closed(settings: KafkaSettings, tmp_path: Path) -> None:
    with opened(settings, entity(TABLE)) as sink:
        store(sink, 1, record(Op.CREATE, '{"id":42}'))
    topic = f"{settings.prefix}.{TABLE}"
    (message,) = read(settings, TABLE)
    row = message.value()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        reads, counts = process.submit(
            read_and_count, settings.client.bootstrap_servers, topic, fetched("streams"), tmp_path
        ).result()
    assert reads == {"get_batch": (True, [row]), "scan": (True, [(KEY, row)])}
    assert {store: (count.active > 0, count.immutable) for store, count in counts.items()} == {"0_0/order": (True, 0)}


def read_and_count(
    servers: str, topic: str, jars: Path, folder: Path
) -> tuple[Mapping[str, tuple[bool, list[object]]], Mapping[str, Memtables]]:
    """Reads a store with each method that reads, while another thread has the lock of RocksDB's store.

    Returns for each method whether it waited for the lock, and what it read then; and the memtables of all stores.
    Needs a process of its own, because a process can start Java only once.
    """
    java.start(find_java(), jars, heap_mib=128, libraries=folder)
    tables = KafkaTables(
        TablesSettings(
            bootstrap_servers=servers, options={}, application=topic, folder=folder / "stores", topics={TABLE: topic}
        )
    )
    try:
        until(lambda: tables.are_restored(), "the table is restored")
        until(lambda: tables.get_batch(TABLE, 0, [KEY], None) != [None], "the table has the row")
        lock = rocksdb_store(Stores(tables._streams, TABLE, 0, standby_too=False).get())
        reads = {
            "get_batch": read_while_locked(lock, lambda: list(tables.get_batch(TABLE, 0, [KEY], None))),
            "scan": read_while_locked(lock, lambda: list(tables.scan(TABLE, 0, b"", None))),
        }
        return reads, tables.memtables()
    finally:
        tables.close()


def read_while_locked(lock: Any, read_rows: Callable[[], list[object]]) -> tuple[bool, list[object]]:
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


def rocksdb_store(store: Any) -> Any:
    """Returns the store of RocksDB inside the objects that Kafka Streams wraps around it."""
    rocksdb = jpype.JClass("org.apache.kafka.streams.state.internals.RocksDBStore")
    while not isinstance(store, rocksdb):
        store = wrapped_by(store)
    return store


def wrapped_by(wrapper: Any) -> Any:
    """Returns the store that an object of Kafka Streams wraps. The fields for it are private."""
    class_ = wrapper.getClass()
    while class_ is not None:
        for field in class_.getDeclaredFields():
            if field.getName() in {"inner", "wrapped", "store"}:
                field.setAccessible(True)
                return field.get(wrapper)
        class_ = class_.getSuperclass()
    raise AssertionError(f"{wrapper.getClass()} wraps no store")
