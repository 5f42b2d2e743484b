"""Defines the sections `[views.X]`. Each section describes a view, which has a document for each row of one entity.

Arrays in the documents can have rows of other entities. The job `spark_jobs/rebuild_view.py` builds views, and
`changelog views serve` serves them.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field

from changelog.connectors.config.fields import Columns, EntityName, Name, Section, Text
from changelog.connectors.config.web import Token, WebConfig
from changelog.envelope.service_choice import ServiceChoice

OWN_ADDRESSES = frozenset({"health", "metrics", "ready"})
"""Paths that `changelog views serve` uses itself, so that no served view can have one of these names."""

_ADDRESS = re.compile(r"(\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\]|[a-zA-Z0-9._-]+):([1-9][0-9]{0,4})")
_PORT_MAX: Final = 65_535
_LRU = re.compile(r"lru:([1-9][0-9]{0,8})")

WINDOWS_MAX: Final = 1000
"""A row can be in at most this many windows."""

Seconds = Annotated[int, Field(ge=1, le=10 * 365 * 86_400)]
KeepDays = Annotated[int, Field(ge=1, le=100_000)]


def _address(text: str) -> str:
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > _PORT_MAX:
        raise ValueError('should be HOST:PORT, such as "10.1.2.3:9466" or "[fd00::1]:9466"')
    return text


def _header(text: str) -> str:
    if not re.fullmatch("[!-~]*", text):
        raise ValueError("should be made of ASCII letters, digits and punctuation, because it is sent in a header")
    return text


def _store(text: str) -> str:
    if text not in ("rocksdb", "in-memory") and _LRU.fullmatch(text) is None:
        raise ValueError('should be "rocksdb", "in-memory" or "lru:N" with a number of keys, such as "lru:100000"')
    return text


Store = Annotated[str, AfterValidator(_store)]
"""Where Kafka Streams keeps rows."""

Address = Annotated[str, AfterValidator(_address)]
"""The address of an instance: `HOST:PORT`."""

InstanceToken = Annotated[Token, AfterValidator(_header)]


class NestedConfig(Section):
    """`[views.X.nested.MEMBER]`: the array MEMBER of a document, with the rows of `entity` that belong to the document.

    `on` says which rows these are: `{"guest_id": "id"}` selects the rows whose column `guest_id` equals the column
    `id` of the enclosing row. For an array of the document, the enclosing row is the document's row. For an array
    inside another array, it is the row of the outer array's element.
    """

    entity: EntityName
    on: Annotated[dict[Text, Text], Field(min_length=1)]
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, "NestedConfig"] = Field(default={})


class StreamsConfig(Section):
    """`[serve.streams]`: how Kafka Streams keeps the rows of a changelog on Kafka.

    `application` is the id of the Kafka Streams application, and also its consumer group; by default, it is made from
    the changelog's name. The application keeps its rows in memory, or in RocksDB in the folder `path`. With `store =
    "lru:N"`, it keeps only some keys of each partition in memory: the N keys that were used last. `heap_mib` is the
    size of Java's heap, which has the rows that are in memory. `jars` is the folder with the jars of Kafka Streams.

    `advertised` is the address at which other instances reach this one. With it, several instances share the partitions
    of an application. They identify themselves with `instance_token`. If an instance stops, and does not come back
    within `session_seconds`, the others take over its partitions. `standbys` is the number of further instances that
    keep a copy of each partition.
    """

    application: Name | None = None
    store: Store = "rocksdb"
    path: Path = Path("data/views")
    heap_mib: int = Field(default=512, ge=64, le=65_536)
    jars: Path | None = None
    advertised: Address | None = None
    instance_token: InstanceToken | None = Field(default=None, repr=False)
    session_seconds: float = Field(default=12, ge=6, le=1800)
    standbys: int = Field(default=0, ge=0, le=10)

    @property
    def keys_max(self) -> int | None:
        """How many keys of each partition are kept; None if all are."""
        match = _LRU.fullmatch(self.store)
        return None if match is None else int(match[1])


class ServeConfig(WebConfig):
    """`[serve]`: where `changelog views serve` listens, and who may read the rows of its views."""

    port: int = Field(default=9466, ge=0, le=65535)
    streams: StreamsConfig = StreamsConfig()

    def beside(self, folder: Path) -> Self:
        paths = {"path": folder / self.streams.path, "jars": self.streams.jars and folder / self.streams.jars}
        streams = self.streams.model_copy(update=paths)
        return super().beside(folder).model_copy(update={"streams": streams})


class ServedConfig(Section):
    """`[views.X.serve]`: `changelog views serve` serves this view.

    `max_lag_seconds` is the largest lag that a request accepts if it has no parameter `max_lag`. If `keep_service`
    names services, only changes by these services count. Changes by the services in `drop_service` do not count. At a
    change that does not count, a row keeps the state that it had before.
    """

    max_lag_seconds: float | None = Field(default=None, gt=0)
    keep_service: tuple[str, ...] = ()
    drop_service: tuple[str, ...] = ()

    @property
    def services(self) -> ServiceChoice:
        """The services whose changes count."""
        return ServiceChoice(keep=tuple(sorted({*self.keep_service})), drop=tuple(sorted({*self.drop_service})))


class WindowConfig(Section):
    """`[views.X.totals.window]`: totals are kept for each window of the time in `column`.

    A window is `seconds` long. A new window begins every `every_seconds`, so a row can be in several windows. By
    default, a window begins when the one before ends. A window is removed `keep_days` after its end; the time of the
    newest row counts as the present time.
    """

    column: Text
    seconds: Seconds
    every_seconds: Seconds | None = None
    keep_days: KeepDays | None = None


class SessionConfig(Section):
    """`[views.X.totals.session]`: totals are kept for each session.

    A session has rows of one group (see `TotalsConfig`). From each row to the next, the time in `column` grows by at
    most `gap_seconds`. A session is removed `keep_days` after its end; the time of the newest row counts as the present
    time.
    """

    column: Text
    gap_seconds: Seconds
    keep_days: KeepDays | None = None


class TotalsConfig(Section):
    """`[views.X.totals]`: the job `spark_jobs/maintain_view.py` also keeps counts and sums of the view's rows.

    Rows with the same values in the columns `by` are a group. For each group, the job keeps the number of rows, and the
    sum of each column in `sums`. With `window` or `session`, the job keeps these numbers for each window or session of
    the group.
    """

    by: Annotated[tuple[Text, ...], Field(max_length=31)] = ()
    sums: Annotated[tuple[Text, ...], Field(max_length=100)] = ()
    window: WindowConfig | None = None
    session: SessionConfig | None = None


class ThrottleConfig(Section):
    """`[views.X.throttle]`: the job `spark_jobs/maintain_view.py` applies at most `rate` changes of `service` a second.

    The changes of other services are not slowed.
    """

    service: Text
    rate: Annotated[int, Field(ge=1, le=1_000_000)]


class ViewConfig(Section):
    """`[views.X]`: a view with one document for each row of `entity`."""

    entity: EntityName
    columns: Columns = ("*",)
    where: Text | None = None
    nested: dict[Text, NestedConfig] = Field(default={})
    serve: ServedConfig | None = None
    totals: TotalsConfig | None = None
    throttle: ThrottleConfig | None = None

    def parts(self) -> Iterator["ViewConfig | NestedConfig"]:
        """Yields the view, and then all arrays in its documents, outer arrays before inner ones."""
        parts: list[ViewConfig | NestedConfig] = [self]
        for part in parts:
            yield part
            parts += part.nested.values()

    def entities(self) -> Iterator[str]:
        """Yields the entities of all `parts`."""
        return (part.entity for part in self.parts())


def streams_problems(serve: ServeConfig) -> Iterator[tuple[str, str]]:
    """Yields each key of `[serve.streams]` that does not fit the others, with a text that says what to do."""
    streams = serve.streams
    if streams.advertised is not None and streams.instance_token is None:
        yield "instance_token", "is missing: instances show it to each other; make one with `openssl rand -hex 24`"
    elif streams.advertised is None and (streams.instance_token is not None or streams.standbys):
        key = "instance_token" if streams.instance_token is not None else "standbys"
        yield "advertised", f"is missing: add the address at which other instances reach this one, or leave {key} out"
    elif streams.instance_token is not None and streams.instance_token == serve.token:
        yield "instance_token", "is the token of readers, but gives access to values that no view shows; choose another"


def served_problems(views: Mapping[str, ViewConfig]) -> Iterator[tuple[str, str]]:
    """Yields each view that has a section `serve` but cannot be served. A text says why, and what to do."""
    for name, view in views.items():
        if view.serve is not None and view.nested:
            yield name, "a view with nested arrays cannot be served; serve a view of each entity, without `nested`"
        elif view.serve is not None and name in OWN_ADDRESSES:
            yield name, f"/{name} has another meaning; give the view another name"
        elif view.serve is not None and (contradiction := view.serve.services.contradiction()):
            yield name, f"{contradiction}; leave one out"


def totals_problems(views: Mapping[str, ViewConfig]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yields each key of `[views.X.totals]` that does not fit the others, with a text that says what to do."""
    for name, view in views.items():
        totals = view.totals
        if totals is None:
            continue
        window, session = totals.window, totals.session
        if window is not None and session is not None:
            yield (name, "totals", "session"), "cannot be combined with window; use another view for one of them"
        elif session is not None and not totals.by:
            yield (name, "totals", "by"), "is missing: add the columns that say to whom a session belongs"
        elif window is None and not totals.by:
            yield (name, "totals", "by"), "is missing: add the columns whose values make the groups"
        elif window is not None and not 1 <= window.seconds / (window.every_seconds or window.seconds) <= WINDOWS_MAX:
            text = f"should be at most `seconds`, and at least `seconds` / {WINDOWS_MAX}"
            yield (name, "totals", "window", "every_seconds"), text
