"""Finds the stores of Kafka Streams for readers, and counts what RocksDB has not written to disk yet.

`KafkaStreams.store` returns a reader that takes no lock. A partition can move to another instance while such a reader
reads a row of it. Then RocksDB would free the memory that is being read, and the process could end. So `Stores` finds
the stores themselves, whose methods are synchronized: a store is closed before or after a row is read, never meanwhile.
An application can define a type of stores, and Kafka Streams gives this type the object with which it finds stores. Our
type returns this object.
"""

from collections.abc import Mapping
from typing import Any

import jpype

from changelog.connectors.views.streams.folder import Memtables

_ACTIVE, _IMMUTABLE = "num-entries-active-mem-table", "num-entries-imm-mem-tables"
"""Metrics of Kafka Streams: how many entries the memtables of a store have."""


class Stores:
    """The store of one partition of a table; with `standby_too`, also if this process is only a standby for it.

    It is looked up for each use, because the process can get and lose the partition. All methods raise Java's
    `InvalidStateStoreException` while the process does not have it.
    """

    def __init__(self, streams: Any, table: str, partition: int, *, standby_too: bool) -> None:
        package = jpype.JPackage("org").apache.kafka.streams
        parameters = package.StoreQueryParameters
        self._table, self._type = jpype.JString(table), package.state.QueryableStoreTypes.keyValueStore()

        def query(type_: Any) -> Any:
            active_only = parameters.fromNameAndType(self._table, type_).withPartition(jpype.JInt(partition))
            return active_only.enableStaleStores() if standby_too else active_only

        self._provider = streams.store(query(_finder()))
        self._provider.setStoreQueryParameters(query(self._type))

    def get(self) -> Any:
        """Returns the store: Java's `ReadOnlyKeyValueStore`. Use it for one request only."""
        return self._provider.stores(self._table, self._type).get(0)

    def refuse_closed(self) -> None:
        """Raises Java's error if the store was closed since `get`. A closed store in memory looks like an empty one."""
        self.get()


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


def memtables(streams: Any) -> Mapping[str, Memtables]:
    """Returns what each store of RocksDB has only in memory, by the names of its task and its table."""
    counts = {_ACTIVE: dict[str, int](), _IMMUTABLE: dict[str, int]()}
    for metric in streams.metrics().values():
        of_stores = counts.get(str(metric.metricName().name()))
        if of_stores is not None:
            tags = metric.metricName().tags()
            of_stores[f"{tags.get('task-id')}/{tags.get('rocksdb-state-id')}"] = int(metric.metricValue().longValue())
    immutable = counts[_IMMUTABLE]
    return {
        store: Memtables(active, immutable[store])
        for store, active in counts[_ACTIVE].items()
        if store in immutable  # Kafka Streams adds the metrics of a store one by one
    }
