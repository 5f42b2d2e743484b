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
        checkpoint: Checkpoint | None,
        system: System,
        history: tuple[tuple[int, int], ...],
        confirmed_flush: int,
    ) -> Self:
        """Traces how the log continues from `checkpoint` on the server `system`.

        `history` holds the ancestors of the server's timeline, oldest first, each with the position at which it ends;
        `confirmed_flush` is the slot's position. Raises ChangelogError: GAP if the slot no longer has the log after the
        checkpoint or if this is another cluster, DIVERGED if the changelog has commits that the server's log lacks.
        """
        if checkpoint is None:
            return cls.unlinked(None, system)
        check_cluster(checkpoint, system)
        forks = [fork for fork in history if fork[0] >= timeline_of(checkpoint)]
        _check_history(checkpoint, system, forks)
        if through_lsn(checkpoint) < confirmed_flush:
            raise ChangelogError(
                Kind.GAP,
                f"the slot has moved to {lsn_text(confirmed_flush)}, beyond the changelog's "
                f"{lsn_text(through_lsn(checkpoint))}: the changes in between are lost",
                hint=OVER_GAP,
            )
        timelines = [*(timeline for timeline, _ in forks), system.timeline]
        ends = [*(switch for _, switch in forks), None]
        return cls(
            stretches=tuple(
                Stretch(end_lsn=end, epoch=checkpoint.epoch + step, timeline=timeline)
                for step, (timeline, end) in enumerate(zip(timelines, ends, strict=True))
            )
        )

    @classmethod
    def unlinked(cls, checkpoint: Checkpoint | None, system: System) -> Self:
        """Returns a lineage that continues no earlier log. It is for a new changelog, and for a changelog that an
        operator has moved to another cluster.
        """
        epoch = FIRST_EPOCH if checkpoint is None else checkpoint.epoch + 1
        return cls(stretches=(Stretch(end_lsn=None, epoch=epoch, timeline=system.timeline),))

    def epoch(self, commit_lsn: int) -> int:
        """Returns the epoch of the commit whose record begins at `commit_lsn` (pgoutput's `final_lsn`)."""
        return next(part.epoch for part in self.stretches if part.end_lsn is None or commit_lsn < part.end_lsn)

    def reached(self, through_lsn: int) -> Stretch:
        """Returns the stretch that contains `through_lsn`; at a fork, the stretch before the fork.

        The epoch and the timeline of this stretch go into the checkpoint.
        """
        return next(part for part in self.stretches if part.end_lsn is None or through_lsn <= part.end_lsn)


def cluster_of(checkpoint: Checkpoint) -> str:
    """Returns the system identifier of the changelog's cluster; empty if the checkpoint names none."""
    return str(checkpoint.source.get("system_identifier", ""))


def timeline_of(checkpoint: Checkpoint) -> int:
    """Returns the timeline on which the changelog ends; 0, which no server has, if the checkpoint names no timeline."""
    return int(checkpoint.source.get("timeline", 0))


def is_elsewhere(checkpoint: Checkpoint | None, system: System) -> bool:
    """Returns whether the changelog comes from another cluster and can continue on this one.

    It cannot continue if it ends inside a transaction, because this server does not have the rest of the transaction.
    """
    return checkpoint is not None and cluster_of(checkpoint) != system.system_identifier and not checkpoint.partial


def joins_on(
    checkpoint: Checkpoint, database: Mapping[str, Any], system: System, history: tuple[tuple[int, int], ...]
) -> bool:
    """Returns whether the changelog was made from this server's log, and the log still has all published commits."""
    try:
        check_database(checkpoint, database)
        Lineage.trace(checkpoint, system, history, confirmed_flush=0)
    except ChangelogError:
        return False
    return True


def check_cluster(checkpoint: Checkpoint, system: System) -> None:
    """Raises ChangelogError (GAP) if the changelog comes from another cluster."""
    if cluster_of(checkpoint) != system.system_identifier:
        raise ChangelogError(
            Kind.GAP,
            f"this is database cluster {system.system_identifier}, but the changelog comes from cluster "
            f"{cluster_of(checkpoint)}",
            hint="connect to the old cluster; after an upgrade that lost nothing, use "
            f"`changelog run --accept-cluster`; otherwise {OVER_GAP}",
        )


def check_database(checkpoint: Checkpoint, database: Mapping[str, Any]) -> None:
    """Raises ChangelogError (GAP) if the changelog comes from another database of the same cluster.

    A database that was renamed is still the same. `database` is the result of `slot.read_database`.
    """
    old_database = checkpoint.source.get("database", database)
    if old_database["oid"] != database["oid"]:
        raise ChangelogError(
            Kind.GAP,
            f"this is database {database['name']} (oid {database['oid']}), but the changelog comes from "
            f"{old_database['name']} (oid {old_database['oid']}) of the same cluster",
            hint=f"connect to {old_database['name']} ([source] dsn); if it no longer exists, {OVER_GAP}",
        )


def _check_history(checkpoint: Checkpoint, system: System, forks: list[tuple[int, int]]) -> None:
    """Raises ChangelogError (DIVERGED) if the server's own history does not contain the end of the changelog."""
    log_end = _published_to(checkpoint)
    if forks and forks[0][0] == timeline_of(checkpoint):
        end, where = forks[0][1], f"left that timeline at {lsn_text(forks[0][1])}"
    elif timeline_of(checkpoint) == system.timeline:
        end, where = system.wal_end, f"ends at {lsn_text(system.wal_end)}"
    else:
        end, where = -1, f"was never on that timeline (it is on {system.timeline})"
    if log_end > end:
        raise ChangelogError(
            Kind.DIVERGED,
            f"the changelog reaches {lsn_text(log_end)} on timeline {timeline_of(checkpoint)}, but the server {where}: "
            "the server lacks commits that were published",
            hint=f"connect to the server that has these commits; otherwise {OVER_GAP}",
        )


def _published_to(checkpoint: Checkpoint) -> int:
    """Returns the position that the server's log must have reached if the changelog was made from this log.

    The position is the `through` of the checkpoint, where a log record ends. If the changelog ends inside a
    transaction, the log must also have the first byte of that transaction's commit record; the position is after this
    byte.
    """
    if checkpoint.partial and checkpoint.position is not None:
        return max(through_lsn(checkpoint), checkpoint.position.commit + 1)
    return through_lsn(checkpoint)
