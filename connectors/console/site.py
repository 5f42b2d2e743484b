"""Contains what all pages use: the configuration, the changelog, and facts that are read in the background."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.config import Config
from changelog.connectors.console.facts import Fact
from changelog.connectors.console.palette import Palette
from changelog.connectors.history.stamp_shares import StampShare
from changelog.connectors.sinks import Log
from changelog.connectors.wiring.entities import default_stamps
from changelog.connectors.wiring.sinks import open_log, read_gaps, refuse_other_envelope
from changelog.connectors.wiring.status import read_shares, read_status
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.columnar import batch
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Record

FRESH_S = 2.0
COUNTS_FRESH_S = 30.0
"""After this many seconds, messages are counted again. Other facts are read again sooner; counting takes longer than
reading them, because it reads a column of the whole changelog.
"""

SHARES_FRESH_S = 10.0

RECENT = 2000
"""To find the newest changes, about this many of the newest rows are read."""

NEWEST = 12
"""The first page shows this many of the newest changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The data that pages show, and functions that read it.

    `status` is the state that `changelog status` prints, except for what `counts` and `shares` have. `counts` has the
    numbers of messages (`Log.counts`), and `shares` says who stamped the newest changes. `newest` are the newest
    changes, and `gaps` the rows that record where changes were lost. `palette` has the colours of services. `stopping`
    returns whether the console is ending, so that live views end, too.
    """

    config: Config
    log: Log
    status: Fact[dict[str, Any]]
    counts: Fact[Mapping[str, Mapping[str, int]]]
    newest: Fact[Sequence[Record]]
    gaps: Fact[Sequence[Record]]
    shares: Fact[Sequence[StampShare]]
    palette: Palette
    stopping: Callable[[], bool]

    def checkpoint(self) -> Checkpoint:
        """Returns the changelog's checkpoint. Raises ChangelogError (PRECONDITION) if the changelog is empty."""
        checkpoint = self.log.checkpoint()
        if checkpoint is None:
            raise ChangelogError(
                Kind.PRECONDITION, f"{self.log.where} is empty", hint="start the service: `changelog run`"
            )
        return checkpoint

    def entities(self) -> Mapping[str, Sequence[str]]:
        """Returns the names of the entities, each with the columns of its key. Raises the errors of `checkpoint`."""
        settings = self.checkpoint().settings
        return {entity: settings[entity].get("key", ()) for entity in sorted(settings)}


def open_site(config: Config, *, stopping: Callable[[], bool]) -> Site:
    """Returns the site of a configuration. Raises ChangelogError (USAGE) if the changelog's messages are not in our own
    envelope.
    """
    refuse_other_envelope(config, "`changelog console`")
    log = open_log(config)
    return Site(
        config=config,
        log=log,
        status=Fact(lambda: read_status(config, counted=False), fresh_s=FRESH_S),
        counts=Fact(log.counts, fresh_s=COUNTS_FRESH_S),
        newest=Fact(lambda: newest_records(log, NEWEST), fresh_s=FRESH_S),
        gaps=Fact(lambda: read_gaps(log), fresh_s=FRESH_S),
        shares=Fact(lambda: read_shares(config, log, _entities(log)), fresh_s=SHARES_FRESH_S),
        palette=Palette(cache(lambda entity: default_stamps(config, [entity])[entity])),
        stopping=stopping,
    )


def _entities(log: Log) -> Collection[str]:
    checkpoint = log.checkpoint()
    return () if checkpoint is None else checkpoint.settings.keys()


def newest_records(log: Log, count: int, *, entity: str | None = None, service: str | None = None) -> list[Record]:
    """Returns up to `count` of the newest changes, the newest first.

    If `entity` is given, leaves out changes of other entities; if `service` is given, those by other services. Looks
    only at about `RECENT` of the newest changes, and never into archives, so it takes the same time for every
    changelog. Raises the errors of `Log.recent`.
    """
    batches = [rows.filter(selected(rows, entity, service)) for rows in log.recent(RECENT)]
    if not batches:
        return []
    table = pa.Table.from_batches(batches).sort_by([("position", "descending"), ("partition", "descending")])
    return [record for rows in table.slice(0, count).to_batches() for record in batch.records(rows)]


def selected(rows: pa.RecordBatch, entity: str | None, service: str | None) -> pa.BooleanArray:
    """Returns a mask that selects the changes of `entity` by `service`; None stands for any entity or any service."""
    mask = pc.is_valid(rows.column("entity"))
    for column, name in (("entity", entity), ("service_name", service)):
        if name is not None:
            mask = pc.and_(mask, pc.equal(rows.column(column), name))
    return mask
