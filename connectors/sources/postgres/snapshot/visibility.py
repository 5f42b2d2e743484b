"""Which transactions a snapshot of PostgreSQL sees: the `Visibility` of `connectors.capture.tables.windows`."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What `pg_current_snapshot()` says: ids below `xmin` are over, those from `xmax` on are not,

    and of those between, the ones in `running` are not. A transaction that is over is visible, or was
    rolled back and touched nothing.
    """

    xmin: int
    xmax: int
    running: Ints

    @classmethod
    def parse(cls, text: str) -> Self:
        """The snapshot that the server prints as `xmin:xmax:xip,xip,…`."""
        xmin, xmax, running = text.split(":")
        ids = np.array([int(xid) for xid in running.split(",") if xid], np.int64)
        return cls(xmin=int(xmin), xmax=int(xmax), running=ids)

    def misses(self, ids: Ints) -> Mask:
        """Which of the transactions this snapshot does not see."""
        return (ids >= self.xmax) | np.isin(ids, self.running)

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """The running transactions below `horizon`."""
        return tuple(xid for xid in self.running.tolist() if xid < horizon)
