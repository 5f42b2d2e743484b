"""Finds out from sampled events which tables an input has, and which columns and keys these tables have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from changelog.connectors.sources import Trait
from changelog.connectors.sources.debezium.decode.events import Changed, Event, EventFacts, EventTable, SourceRecord
from changelog.envelope.errors import ChangelogError

Translate = Callable[[Sequence[SourceRecord]], Sequence[Event]]
"""Translates messages. Raises ChangelogError: MALFORMED if one of them is not an event of Debezium."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """See `changelog.connectors.sources.ColumnInfo`."""

    name: str
    not_null: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTable:
    """A table; see `changelog.connectors.sources.TableInfo`.

    `rows_estimate` counts the messages of its topics. `partitions` is the highest number of partitions of any of these
    topics. `described` is the table as its last sampled event describes it; None for a table that only the
    configuration names. `connector` and `database` are the names in its events.
    """

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    rows_estimate: int
    trait: Trait
    partitions: int
    described: EventTable | None = field(repr=False)
    connector: str = ""
    database: str = ""
    nbytes: int = 0

    def key_problem(self, key: Sequence[str]) -> str | None:
        """See `TableInfo`. If a topic has several partitions, the events of one row are in order only if the entity key
        contains all columns of the messages' key.
        """
        if self.partitions <= 1 or (self.primary_key and set(self.primary_key) <= set(key)):
            return None
        if not self.primary_key:
            return (
                f"the messages of the table {self.schema}.{self.name} have no key, so events of one row may be in any "
                f"of the {self.partitions} partitions; set message.key.columns in Debezium"
            )
        return (
            f"the messages of the table {self.schema}.{self.name} have the key ({', '.join(self.primary_key)}), so "
            "with another key, the events of one row may be in several partitions; let the entity's key have at least "
            "these columns"
        )

    def usable_key(self) -> tuple[str, ...] | None:
        """See `TableInfo`: the key of the messages."""
        return self.primary_key or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The result of sampling: the tables, and for each topic with a message that cannot be read, the reason."""

    tables: Sequence[SampledTable]
    unreadable: Mapping[str, ChangelogError]


@dataclass(slots=True)
class _TableSample:
    """The sampled events of a table."""

    table: EventTable
    facts: EventFacts
    topics: set[str] = field(default_factory=set)
    updates: int = 0
    with_before: int = 0

    def add(self, topic: str, event: Changed) -> None:
        self.table = event.table if event.op != "d" or not self.table.columns else self.table
        self.topics.add(topic)
        if event.op == "u":
            self.updates += 1
            self.with_before += event.before is not None


def sampled(
    messages: Mapping[str, Sequence[SourceRecord]],
    translate: Translate,
    *,
    counts: Mapping[str, int],
    partitions: Mapping[str, int],
    declared: Mapping[tuple[str, str], tuple[str, ...]],
) -> Sampled:
    """Returns what the sampled `messages` (by topic) say about their tables.

    `counts` says how many messages each topic has, and `partitions` how many partitions. `declared` has tables that the
    configuration names, and for each of them the columns that the configuration names.
    """
    samples: dict[tuple[str, str], _TableSample] = {}
    unreadable: dict[str, ChangelogError] = {}
    for topic, topic_messages in messages.items():
        for event in _events(topic, topic_messages, translate, unreadable):
            if isinstance(event, Changed):
                samples.setdefault(event.table.name, _TableSample(event.table, event.facts)).add(topic, event)
    tables = [_table(name, facts, counts, partitions) for name, facts in samples.items()]
    tables += [_declared(name, columns) for name, columns in declared.items() if name not in samples]
    return Sampled(tables=sorted(tables, key=lambda table: (table.schema, table.name)), unreadable=unreadable)


def has_change(messages: Sequence[SourceRecord], translate: Translate) -> bool:
    """Returns whether the messages suffice to describe a table: one of them is a change other than a delete, or cannot
    be read.
    """
    unreadable: dict[str, ChangelogError] = {}
    events = list(_events("", messages, translate, unreadable))
    return bool(unreadable) or any(isinstance(event, Changed) and event.op != "d" for event in events)


def _events(
    topic: str, messages: Iterable[SourceRecord], translate: Translate, unreadable: dict[str, ChangelogError]
) -> Iterable[Event]:
    for message in messages:
        try:
            yield from translate([message])
        except ChangelogError as error:
            unreadable[topic] = error


def _table(
    name: tuple[str, str], sample: _TableSample, counts: Mapping[str, int], partitions: Mapping[str, int]
) -> SampledTable:
    return SampledTable(
        schema=name[0],
        name=name[1],
        columns=tuple(TableColumn(column.name, not column.optional) for column in sample.table.columns),
        primary_key=sample.table.key,
        rows_estimate=sum(counts[topic] for topic in sample.topics),
        trait=_trait(sample),
        partitions=max(partitions[topic] for topic in sample.topics),
        described=sample.table,
        connector=sample.facts.connector,
        database=sample.facts.database,
    )


def _trait(sample: _TableSample) -> Trait:
    if not sample.updates:
        return Trait(name="before", value="not seen yet", suffices=True)
    if sample.with_before == sample.updates:
        return Trait(name="before", value="there", suffices=True)
    return Trait(name="before", value="missing" if not sample.with_before else "missing at times", suffices=False)


def _declared(name: tuple[str, str], columns: tuple[str, ...]) -> SampledTable:
    return SampledTable(
        schema=name[0],
        name=name[1],
        columns=tuple(TableColumn(column, not_null=True) for column in columns),
        primary_key=(),
        rows_estimate=0,
        trait=Trait(name="before", value="no event yet", suffices=True),
        partitions=1,
        described=None,
    )
