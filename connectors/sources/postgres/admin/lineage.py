"""Determines which history of the database's log a position belongs to, and whether the changelog can continue in it.

Each history has a number, its *epoch*: each promotion of a standby and each new cluster begins a new epoch. A promoted
server continues on a new timeline, which branches off the old one at a position, the *fork*. A commit before the fork
belongs to the epoch in which it was first published, even if the promoted server sends it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from changelog.connectors.sources.postgres.stream.replication import System
from changelog.connectors.sources.postgres.values.lsn import lsn_text, through_lsn
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind

FIRST_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of the log in one epoch and on one timeline. `end_lsn` is where it ends; None for the last stretch."""

    end_lsn: int | None
    epoch: int
    timeline: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The stretches of the log from the last checkpoint on, in the order of the log."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def trace(
        cls,
        stored: Checkpoint | None,
        system: System,
        history: tuple[tuple[int, int], ...],
        confirmed_flush: int,
    ) -> Self:
        """Traces how the log continues from `stored` on the server `system`.

        `history` holds the ancestors of the server's timeline, oldest first, each with the position at which it ends;
        `confirmed_flush` is the slot's position. Raises ChangelogError: GAP if log after the checkpoint is no longer
        available or the cluster is a different one, DIVERGED if the changelog has commits that this history lacks.
        """
        if stored is None:
            return cls.unlinked(None, system)
        check_cluster(stored, system)
        forks = [fork for fork in history if fork[0] >= timeline_of(stored)]
        _check_history(stored, system, forks)
        if through_lsn(stored) < confirmed_flush:
            raise ChangelogError(
                Kind.GAP,
                f"the slot has moved to {lsn_text(confirmed_flush)}, beyond the changelog's "
                f"{lsn_text(through_lsn(stored))}: the changes in between are lost",
                hint=OVER_GAP,
            )
        timelines = [*(timeline for timeline, _ in forks), system.timeline]
        ends = [*(switch for _, switch in forks), None]
        return cls(
            stretches=tuple(
                Stretch(end_lsn=end, epoch=stored.epoch + step, timeline=timeline)
                for step, (timeline, end) in enumerate(zip(timelines, ends, strict=True))
            )
        )

    @classmethod
    def unlinked(cls, stored: Checkpoint | None, system: System) -> Self:
        """Returns a lineage that continues no earlier log: for a new changelog, or after a new cluster was accepted."""
        epoch = FIRST_EPOCH if stored is None else stored.epoch + 1
        return cls(stretches=(Stretch(end_lsn=None, epoch=epoch, timeline=system.timeline),))

    def epoch(self, commit_lsn: int) -> int:
        """Returns the epoch of the commit whose record begins at `commit_lsn` (pgoutput's `final_lsn`)."""
        return next(part.epoch for part in self.stretches if part.end_lsn is None or commit_lsn < part.end_lsn)

    def reached(self, through_lsn: int) -> Stretch:
        """Returns the stretch that contains `through_lsn`; at a fork, the stretch before the fork.

        The epoch and the timeline of this stretch go into the checkpoint.
        """
        return next(part for part in self.stretches if part.end_lsn is None or through_lsn <= part.end_lsn)


def cluster_of(stored: Checkpoint) -> str:
    """Returns the system identifier of the changelog's cluster; empty if the checkpoint names none."""
    return str(stored.source.get("system_identifier", ""))


def timeline_of(stored: Checkpoint) -> int:
    """Returns the timeline on which the changelog ends; 0, which no server has, if the checkpoint names no timeline."""
    return int(stored.source.get("timeline", 0))


def is_elsewhere(stored: Checkpoint | None, system: System) -> bool:
    """Returns whether the changelog comes from another cluster and can continue on this one.

    It cannot continue if it ends inside a transaction, because this server does not have the rest of the transaction.
    """
    return stored is not None and cluster_of(stored) != system.system_identifier and not stored.partial


def joins_on(
    stored: Checkpoint, database: Mapping[str, Any], system: System, history: tuple[tuple[int, int], ...]
) -> bool:
    """Returns whether the changelog was made from this server's log, and this log has everything that was published."""
    try:
        check_database(stored, database)
        Lineage.trace(stored, system, history, confirmed_flush=0)
    except ChangelogError:
        return False
    return True


def check_cluster(stored: Checkpoint, system: System) -> None:
    """Raises ChangelogError (GAP) if the changelog comes from another cluster."""
    if cluster_of(stored) != system.system_identifier:
        raise ChangelogError(
            Kind.GAP,
            f"this is database cluster {system.system_identifier}, but the changelog comes from cluster "
            f"{cluster_of(stored)}",
            hint="connect to the old cluster; after an upgrade that lost nothing, use "
            f"`changelog run --accept-cluster`; otherwise {OVER_GAP}",
        )


def check_database(stored: Checkpoint, database: Mapping[str, Any]) -> None:
    """Raises ChangelogError (GAP) if the changelog comes from another database of the same cluster.

    A database that was renamed is still the same. `database` is the result of `slot.read_database`.
    """
    old_database = stored.source.get("database", database)
    if old_database["oid"] != database["oid"]:
        raise ChangelogError(
            Kind.GAP,
            f"this is database {database['name']} (oid {database['oid']}), but the changelog comes from "
            f"{old_database['name']} (oid {old_database['oid']}) of the same cluster",
            hint=f"connect to {old_database['name']} ([source] dsn); if it no longer exists, {OVER_GAP}",
        )


def _check_history(stored: Checkpoint, system: System, forks: list[tuple[int, int]]) -> None:
    """Raises ChangelogError (DIVERGED) if the server's own history does not contain the end of the changelog."""
    reached = _published_to(stored)
    if forks and forks[0][0] == timeline_of(stored):
        end, where = forks[0][1], f"left that timeline at {lsn_text(forks[0][1])}"
    elif timeline_of(stored) == system.timeline:
        end, where = system.wal_end, f"ends at {lsn_text(system.wal_end)}"
    else:
        end, where = -1, f"was never on that timeline (it is on {system.timeline})"
    if reached > end:
        raise ChangelogError(
            Kind.DIVERGED,
            f"the changelog reaches {lsn_text(reached)} on timeline {timeline_of(stored)}, but the server {where}: "
            "the server lacks commits that were published",
            hint=f"connect to the server that has these commits; otherwise {OVER_GAP}",
        )


def _published_to(stored: Checkpoint) -> int:
    """Returns the position that the server's log must have reached if the changelog was made from this log.

    The position is the `through` of the checkpoint, where a log record ends. If the changelog ends inside a
    transaction, the log must also have the first byte of that transaction's commit record; the position is after this
    byte.
    """
    if stored.partial and stored.position is not None:
        return max(through_lsn(stored), stored.position.commit + 1)
    return through_lsn(stored)
