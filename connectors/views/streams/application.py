"""Defines an application of Kafka Streams, and the names of applications.

One application has the tables of all views that show every change. Views that include only the changes of some
services have further applications: one for each entity and choice of services. Such an application reads the entity's
topic from the beginning, whatever the other applications have read.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from changelog.connectors.views.streams.partitions import OwnPartitions, Partitions
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import KafkaTables
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.service_choice import ServiceChoice

MAIN: Final = ""
"""The name of the application that has all changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application that runs. `progress` says how far its `tables` are complete.

    `partitions` reads the tables' partitions, here or at other instances; `own_partitions` reads only those of this
    process. `topics` are the topics of the application's entities. With `keys_max`, each partition keeps only this many
    keys: those that were used last. `store_bytes` returns how many bytes the stores have on disk.
    """

    tables: KafkaTables
    partitions: Partitions
    own_partitions: OwnPartitions
    progress: TablesProgress
    topics: Mapping[str, ServedTopic]
    store_bytes: Callable[[], int]
    keys_max: int | None = None


def name_of(entity: str, topic: ServedTopic, id_: str, services: ServiceChoice) -> str:
    """Returns the name of the application that has the rows of `entity` without the changes that `services` leaves out.

    The name changes if the services change, and if the topic is another one or was created again. Then the rows are
    made anew from the topic.
    """
    what = [topic.name, id_, "keep", *services.keep, "drop", *services.drop]
    return f"{entity}.{zlib.crc32(repr(what).encode()):08x}"
