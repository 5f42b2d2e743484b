"""Defines an application of Kafka Streams, and the names of those for changes by some services.

One application has the tables of all views that show every change. Each choice of services of an entity has an
application of its own: it reads the entity's topic from its begin on, whatever the other applications have read.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from changelog.connectors.views.streams.partitions import Partitions
from changelog.connectors.views.streams.progress import TablesProgress
from changelog.connectors.views.streams.tables import KafkaTables
from changelog.connectors.views.streams.topics import ServedTopic
from changelog.envelope.service_choice import ServiceChoice

MAIN: Final = ""
"""The name of the application that has all changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """Running tables, how far they are complete, and how their partitions are read, also at other instances.

    `topics` are the topics of its entities. With `keys_max`, only so many keys of each partition are kept, those that
    were used last. `store_bytes` returns how much the stores take on disk.
    """

    tables: KafkaTables
    partitions: Partitions
    progress: TablesProgress
    topics: Mapping[str, ServedTopic]
    store_bytes: Callable[[], int]
    keys_max: int | None = None


def name_of(entity: str, topic: ServedTopic, id_: str, services: ServiceChoice) -> str:
    """Returns the name of the application for the changes of an entity that `services` includes.

    If the services change, or if the topic is another one, or was created again, the name is another one, so the rows
    are made anew from the topic.
    """
    what = [topic.name, id_, "keep", *services.keep, "drop", *services.drop]
    return f"{entity}.{zlib.crc32(repr(what).encode()):08x}"
