"""Counts who stamped the newest changes: the application that made them, a trigger in the database, or nobody."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from changelog.connectors.sinks import Log
from changelog.envelope.entity import RESERVED
from changelog.envelope.model import Op, Stamp
from changelog.envelope.stamp import StampKind, kind_of

NEWEST: Final = 10_000
"""About this many of the newest changes are counted, unless the caller says otherwise."""

_COLUMNS: Final = ("entity", "op", "position", "service_name", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class StampShare:
    """Says how many of the newest changes one service made to one entity, with a count for each kind of stamp.

    For changes without a stamp, the service is that of the configured default stamp.
    """

    entity: str
    service: str
    application: int
    session: int
    none: int

    @property
    def changes(self) -> int:
        """The number of all these changes."""
        return self.application + self.session + self.none


def stamp_shares(log: Log, *, newest: int = NEWEST, defaults: Mapping[str, Stamp] | None = None) -> list[StampShare]:
    """Returns a share for each entity and service. Counts the changes among the rows that `Log.recent(newest)` yields.

    `defaults` has the configured default stamp of each entity. Rows that the service read from tables are left out:
    they do not say who changed something. A change that moved a row has two records, but counts once. The list is
    sorted by entity, and then by the number of changes, the largest first. Raises the errors of `Log.recent`.
    """
    recent = [rows.select(_COLUMNS) for rows in log.recent(newest)]
    written = [rows.filter(pc.not_equal(rows.column("op"), Op.READ.value)) for rows in recent]
    counts: Counter[tuple[str, str, StampKind]] = Counter()
    for group in _groups(written):
        entity, service = group["entity"], group["service_name"]
        if entity not in RESERVED:
            stamp = Stamp(api_version="", service_name=service, identifier="", context=group["context"])
            kind = kind_of(stamp, (defaults or {}).get(entity))
            counts[entity, service, kind] += group["position_count_distinct"]
    shares = [
        StampShare(entity=entity, service=service, **{str(kind): counts[entity, service, kind] for kind in StampKind})
        for entity, service in {(entity, service) for entity, service, _ in counts}
    ]
    return sorted(shares, key=lambda share: (share.entity, -share.changes, share.service))


def _groups(batches: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Returns each combination of entity, service and context, with the number of its distinct positions."""
    if not batches:
        return []
    groups = pa.Table.from_batches(batches).group_by(["entity", "service_name", "context"])
    rows: list[dict[str, Any]] = groups.aggregate([("position", "count_distinct")]).to_pylist()
    return rows
