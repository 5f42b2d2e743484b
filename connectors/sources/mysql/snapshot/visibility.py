"""Finds out which transactions of the binary log a snapshot of the server sees.

A transaction is identified by its coordinate in the log. For each snapshot, MariaDB names a place in the log: the
snapshot sees exactly the commits before this place. MySQL only says which GTIDs were executed before the snapshot was
taken; the service remembers which GTID it received at each coordinate. Both databases can deliver a commit before they
make it visible. While a server executes an XA COMMIT, the place or the GTIDs that it reports may already include this
commit, although the snapshot does not see it yet (`xa_commits`).
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.snapshot.xa_commits import XaCommits
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NEVER: Final = (1 << 63) - 1
"""A coordinate after all places in the log."""


class Deliveries:
    """The transactions that the stream has delivered since it was opened: the coordinate and the GTID of each.

    The thread that reads the stream adds transactions, and other threads take snapshots. A transaction is forgotten
    when all snapshots in use see it. `received` has the transactions that were delivered before the stream was opened.
    All of these come before the coordinate `covered`; it is None while no such coordinate is known. `xa_commits` finds
    out which XA COMMITs a snapshot surely sees; see there for `undecided_before` and `passed`.

    Transactions are forgotten in the order of the log. So one that a snapshot may miss keeps all later ones: after a
    commit in ONE PHASE, the coordinates and GTIDs of one to two minutes stay in memory (`XaCommits.settled`).
    """

    def __init__(
        self,
        received: Gtids,
        covered: int | None,
        undecided_before: Callable[[XaId], int] = lambda _: 0,
        passed: Callable[[], int] = lambda: 0,
    ) -> None:
        self.received, self.covered = received, covered
        self.xa_commits = XaCommits(undecided_before, passed)
        self._lock = Lock()
        self._coordinates: list[int] = []
        self._gtids: list[str] = []
        self.one_phase: set[str] = set()
        """The GTIDs of the XA transactions that were committed in ONE PHASE."""
        self._snapshots: WeakSet[GtidSnapshot] = WeakSet()

    def add(self, coordinate: int, gtid: str, one_phase: bool = False) -> None:
        """Adds a transaction. Its coordinate must be greater than those of all transactions that were added before.

        `one_phase` says that it is an XA transaction that was committed in ONE PHASE.
        """
        with self._lock:
            self._coordinates.append(coordinate)
            self._gtids.append(gtid)
            if one_phase:
                self.one_phase.add(gtid)

    def snapshot(self, executed: Gtids, end: int = _NEVER, settled: Gtids | None = None) -> "GtidSnapshot":
        """Returns the object for a snapshot that the server will take after this call. That snapshot sees at least the
        transactions of `executed` whose coordinate is less than `end`.

        There is one exception: of the transactions that were committed in ONE PHASE, it is sure to see only those in
        `settled`. If `settled` is None, `executed` is used instead.

        If the server took the snapshot before the call, a transaction that the snapshot misses could be forgotten
        already.
        """
        snapshot = GtidSnapshot(executed, end, executed if settled is None else settled, self)
        with self._lock:
            self._snapshots.add(snapshot)
            count = 0
            while count < len(self._gtids) and all(other.sees(self._gtids[count]) for other in self._snapshots):
                count += 1
            self.one_phase.difference_update(self._gtids[:count])
            del self._coordinates[:count], self._gtids[:count]
        return snapshot

    def gtid(self, coordinate: int) -> str | None:
        """Returns the GTID of a transaction; None if it is forgotten, or was delivered before the stream was opened."""
        with self._lock:
            place = bisect_left(self._coordinates, coordinate)
            is_there = place < len(self._coordinates) and self._coordinates[place] == coordinate
            return self._gtids[place] if is_there else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSnapshot:
    """A snapshot of MariaDB: it sees all transactions whose coordinate is less than `end`.

    It may also see later ones: `end` can be before the place that the server reports, because of XA transactions.
    `sees_received` says whether the snapshot sees all transactions that were delivered before the stream was opened.
    """

    end: int
    sees_received: bool = True

    def misses(self, ids: Ints) -> Mask:
        """See `Visibility`."""
        mask: Mask = ids >= self.end
        return mask

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """See `Visibility`."""
        return () if self.sees_received else (horizon - 1,)


class GtidSnapshot:
    """A snapshot of MySQL. `Deliveries.snapshot` makes it, and explains the parameters."""

    def __init__(self, executed: Gtids, end: int, settled: Gtids, deliveries: Deliveries) -> None:
        self.executed, self._end, self._settled = executed, end, settled
        self._delivered = deliveries

    def sees(self, gtid: str) -> bool:
        """Returns whether the snapshot sees a delivered transaction, judged only by the GTID, not by the coordinate."""
        return (self._settled if gtid in self._delivered.one_phase else self.executed).contains(gtid)

    def misses(self, ids: Ints) -> Mask:
        """See `Visibility`. The mask may also include a transaction that the snapshot does see. That does no harm."""
        coordinates, places = np.unique(ids, return_inverse=True)
        gtids = [self._delivered.gtid(coordinate) for coordinate in coordinates.tolist()]
        mask: Mask = np.array([gtid is not None and not self.sees(gtid) for gtid in gtids], bool)[places]
        return mask | (ids >= self._end)

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """See `Visibility`. Of the transactions that were delivered before the stream was opened, only the GTIDs are
        known, not the coordinates. So if the snapshot may miss any of them, one id, `horizon - 1`, stands for all.
        """
        delivered = self._delivered
        reaches = self._end == _NEVER or (delivered.covered is not None and delivered.covered <= self._end)
        return () if reaches and delivered.received.is_subset(self.executed) else (horizon - 1,)
