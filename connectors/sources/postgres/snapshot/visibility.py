"""Determines which transactions a snapshot of PostgreSQL sees.

Implements the `Visibility` of `changelog.connectors.capture.tables.windows`.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of `pg_current_snapshot()`.

    Transactions with ids below `xmin` have ended, and those from `xmax` on have not. Those in between have ended unless
    they are in `running`. Every transaction that has ended counts as visible. If it was rolled back, this makes no
    difference, because it changed nothing.
    """

    xmin: int
    xmax: int
    running: Ints

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses the server's text, `xmin:xmax:xip,xip,…`."""
        xmin, xmax, running = text.split(":")
        ids = np.array([int(xid) for xid in running.split(",") if xid], np.int64)
        return cls(xmin=int(xmin), xmax=int(xmax), running=ids)

    def misses(self, ids: Ints) -> Mask:
        """Returns a mask of the transactions in `ids` that this snapshot does not see."""
        return (ids >= self.xmax) | np.isin(ids, self.running)

    def unseen_before(self, horizon: int) -> tuple[int, ...]:
        """Returns the ids below `horizon` of the transactions that were running when the snapshot was taken."""
        return tuple(xid for xid in self.running.tolist() if xid < horizon)
