"""Reads the stores of Kafka Streams under their locks, and makes RocksDB write them to disk.

`KafkaStreams.store` returns a reader that takes no lock. But a store can change or be closed while it is read, for
example because its partition moves to another instance. Then RocksDB would read memory that is already free, and the
process could end; and a store in memory could lack rows that it has. So `PartitionStore` finds the store itself, and
reads it under its locks:

- The methods of a store of RocksDB, and of an LRU store, take the store's lock (`synchronized`).
- A store in memory is different. The methods that read take the lock of the store, or none. Changes are made with the
  lock of the store's `Position`; while a standby follows the topic, that is the only lock. So readers take both locks,
  in the order in which `put` takes them.

An application can define a type of stores, and Kafka Streams gives this type the object with which it finds stores. Our
type returns this object.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import jpype

_PAIRS_AT_ONCE: Final = 500
"""How many rows of a store in memory are read at once. Changes of the store wait meanwhile."""


class PartitionStore:
    """The store of one partition of a table; with `standby_too`, also if this process is only a standby for it.

    `in_memory` says whether it is a store in memory that keeps all rows. The store is looked up for each use, because
    the process can get and lose the partition. All methods raise Java's `InvalidStateStoreException` while the process
    does not have it, and if it is closed meanwhile.
    """

    def __init__(self, streams: Any, table: str, partition: int, *, standby_too: bool, in_memory: bool) -> None:
        package = jpype.JPackage("org").apache.kafka.streams
        types, parameters = package.state.QueryableStoreTypes, package.StoreQueryParameters
        self._in_memory, self._table = in_memory, jpype.JString(table)
        self._type = types.timestampedKeyValueStore() if in_memory else types.keyValueStore()

        def query(type_: Any) -> Any:
            active_only = parameters.fromNameAndType(self._table, type_).withPartition(jpype.JInt(partition))
            return active_only.enableStaleStores() if standby_too else active_only

        self._provider = streams.store(query(_finder()))
        self._provider.setStoreQueryParameters(query(self._type))

    def get_batch(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Returns the last message of each key; None if there is none."""
        store = self._get()
        with _locked(store) if self._in_memory else _unlocked():
            values = [store.get(_bytes(key)) for key in keys]
        self._get()  # raises an error if the store was closed: a closed store in memory looks like an empty one
        return [None if value is None else bytes(self._message(value)) for value in values]

    def scan(self, begin: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Yields the keys from `begin` on in their order, each with its last message."""
        if not self._in_memory:
            yield from self._pairs(self._get(), begin)
            return
        count = _PAIRS_AT_ONCE
        while count == _PAIRS_AT_ONCE:
            store = self._get()
            with _locked(store):
                pairs = [pair for pair, _ in zip(self._pairs(store, begin), range(_PAIRS_AT_ONCE), strict=False)]
            self._get()
            yield from pairs
            count = len(pairs)
            begin = pairs[-1][0] + b"\0" if pairs else begin

    def _get(self) -> Any:
        return self._provider.stores(self._table, self._type).get(0)

    def _pairs(self, store: Any, begin: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        pairs = store.range(_bytes(begin), None)
        try:
            while pairs.hasNext():
                pair = pairs.next()
                yield bytes(pair.key), bytes(self._message(pair.value))
        finally:
            pairs.close()

    def _message(self, value: Any) -> Any:
        return value.value() if self._in_memory else value


class RocksDbStores:
    """The stores of RocksDB in this process. Kafka Streams makes them with suppliers of this object."""

    def __init__(self) -> None:
        self._references: list[Any] = []

    def supplier(self, table: str) -> Any:
        """Returns Java's supplier for the stores of a table."""
        supplier = jpype.JPackage("org").apache.kafka.streams.state.Stores.persistentTimestampedKeyValueStore(table)

        @jpype.JImplements("org.apache.kafka.streams.state.KeyValueBytesStoreSupplier")
        class Supplier:
            @jpype.JOverride
            def name(self) -> Any:
                return supplier.name()

            @jpype.JOverride
            def metricsScope(self) -> Any:  # noqa: N802 - Java's name
                return supplier.metricsScope()

            @jpype.JOverride
            def get(_self) -> Any:  # noqa: N805 - `self` is the object outside
                store = supplier.get()
                self._references.append(jpype.JClass("java.lang.ref.WeakReference")(store))
                return store

        return Supplier()

    def flush(self) -> None:
        """Makes RocksDB write to disk what the open stores have in memory. Raises RocksDB's error if it cannot.

        RocksDB also writes a store when it is closed.
        """
        field = jpype.JClass("org.apache.kafka.streams.state.internals.RocksDBStore").class_.getDeclaredField("db")
        field.setAccessible(True)
        for reference in list(self._references):
            store = reference.get()
            if store is None:
                self._references.remove(reference)
                continue
            with jpype.synchronized(store):
                if store.isOpen():
                    # This call writes all column families to disk. `flush` needs their handles, and Kafka Streams may
                    # have closed that of the default column family.
                    field.get(store).getLiveFiles(True)


def _bytes(octets: bytes) -> Any:
    return jpype.JArray(jpype.JByte)(octets)


@contextmanager
def _unlocked() -> Iterator[None]:
    yield


@contextmanager
def _locked(store: Any) -> Iterator[None]:
    """Takes the locks of a store in memory, for readers."""
    rows = store.findInner(jpype.JClass("org.apache.kafka.streams.state.internals.InMemoryKeyValueStore"))
    with jpype.synchronized(rows), jpype.synchronized(rows.getPosition()):
        yield


def _finder() -> Any:
    """Returns a type of stores. A "store" of this type is Kafka Streams' own object that finds stores."""

    @jpype.JImplements("org.apache.kafka.streams.state.QueryableStoreType")
    class Finder:
        @jpype.JOverride
        def accepts(self, _store: Any) -> bool:
            return True

        @jpype.JOverride
        def create(self, provider: Any, _table: Any) -> Any:
            return provider

    return Finder()
