"""Finds out which XA COMMITs a snapshot may miss although they are in the log already.

MariaDB, and MySQL before 8.0.30, execute an XA COMMIT in two steps: first they write it into the log, and then they
commit the rows. A snapshot that is taken between the two steps does not see the rows. But the place that MariaDB
reports for this snapshot, or the set of executed GTIDs of MySQL, already includes the XA COMMIT.

`XA RECOVER` lists an XA transaction until both steps are done. So before each snapshot, we find out where the log ends,
and then list the prepared transactions. For each listed transaction, we know a place before which its XA COMMIT cannot
be:

- If an earlier list lacked the transaction, it was prepared after that list, and so its XA COMMIT comes after the end
  of the log that was found before that list.
- If the stream has the transaction as prepared, its XA COMMIT comes after the place that the stream has reached. This
  place moves on even if a transaction stays prepared for a long time.

The snapshot sees every XA COMMIT before all of these places.

MySQL before 8.0.30 lists an XA COMMIT in ONE PHASE only after it has added the GTID to the executed ones. So the list
does not help in between. But the stream knows which transactions were committed in ONE PHASE. Such a transaction counts
as seen only if its GTID was among the executed ones at least a minute before the snapshot.
"""

import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from changelog.connectors.sources.mysql.admin.server_log import xa_commits
from changelog.connectors.sources.mysql.decode.events.events import XaId
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.session.server_errors import XA_REFUSED, number_of
from changelog.connectors.sources.mysql.snapshot.orphans import Orphans
from changelog.connectors.sources.mysql.values.positions.gtid_set import GtidSet
from changelog.connectors.sources.mysql.values.positions.gtids import Gtids
from changelog.envelope.errors import ChangelogError, Kind

_LIST: Final = {Flavour.MARIADB: "XA RECOVER FORMAT = 'SQL'", Flavour.MYSQL: "XA RECOVER CONVERT XID"}
"""Without these options, the server sends the bytes of an id as if they were text in UTF-8."""

SETTLED_AFTER_S: Final = 60.0
"""How many seconds after its GTID counts as executed an XA COMMIT in ONE PHASE is certainly visible.

Usually, this takes milliseconds. It takes longer if the disk is slow, or if the commit adds to a full-text index.
"""


class XaCommits:
    """Knows where in the log the XA COMMITs of the prepared transactions can be. Several threads use it.

    `undecided_before` takes the id of a transaction, and returns a coordinate: from its PREPARE up to there, the
    transaction was not committed. The coordinate is 0 if nothing is known. `passed` returns a coordinate before which
    the stream has read everything; see `LogState.passed`.
    """

    def __init__(self, undecided_before: Callable[[XaId], int], passed: Callable[[], int] = lambda: 0) -> None:
        self._undecided_before, self._passed = undecided_before, passed
        self._lock = Lock()
        self._end = 0
        self._places: dict[XaId, int] = {}
        self._orphans = Orphans()
        self._prepared_before: int | None = None
        """The first coordinate that `prepared_before` got."""
        self._settled: Gtids = GtidSet(intervals={})
        self._executed: Gtids = self._settled
        self._settled_at = 0.0
        """When `_executed` becomes `_settled`, in seconds of `time.monotonic`."""

    def seen_before(self, end: int, prepared: Sequence[XaId]) -> int:
        """Returns a coordinate: a snapshot that is taken after this call sees every XA COMMIT before it.

        The log ended at `end` or later when the list `prepared` was read. The result is 0 if nothing is known of a
        transaction in the list; then call `prepared_before`.
        """
        with self._lock:
            passed = self._passed()  # comes before `undecided_before`: between the calls, the stream may read a PREPARE
            self._places = {
                xa_id: max(self._places.get(xa_id, self._end), self._undecided_before(xa_id)) for xa_id in prepared
            }
            self._end = end
            is_behind = self._prepared_before is None or passed < self._prepared_before
            self._orphans.wait_for([] if is_behind else [xa_id for xa_id, place in self._places.items() if place == 0])
            return min([end, *self._places.values()])

    def prepared_before(self, end: int) -> None:
        """Takes the end of the log. It was queried after the list of a call of `seen_before` that returned 0.

        The transactions of which nothing is known are in all lists, so they were prepared before `end`. If the stream
        has passed `end` and does not have them, it will not read their PREPARE any more. Only then, a warning names
        them.
        """
        with self._lock:
            if self._prepared_before is None:
                self._prepared_before = end

    def settled(self, executed: Gtids) -> Gtids:
        """Returns transactions whose GTIDs were among the executed ones SETTLED_AFTER_S ago.

        A snapshot that is taken after this call sees them even if they were committed in ONE PHASE. `executed` has the
        GTIDs that are executed now. A transaction is returned once its GTID has been among them for one to two times
        SETTLED_AFTER_S, or for longer if the calls are further apart.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._settled_at:
                self._settled, self._executed, self._settled_at = self._executed, executed, now + SETTLED_AFTER_S
            return self._settled


def prepared_transactions(control: Connection) -> Sequence[XaId]:
    """Lists the prepared XA transactions, with those whose XA COMMIT or XA ROLLBACK has not ended yet.

    Raises ChangelogError (ACCESS) if MySQL does not show the list to the account, and there was an XA COMMIT since the
    server started.
    """
    read = _from_sql if control.flavour is Flavour.MARIADB else _from_hex
    try:
        rows = control.query(_LIST[control.flavour])
    except ChangelogError as error:
        if number_of(error) != XA_REFUSED:
            raise
        if xa_commits(control.query) == 0:
            return ()
        raise ChangelogError(
            Kind.ACCESS,
            "the account may not list prepared XA transactions, and applications use them",
            hint="GRANT XA_RECOVER_ADMIN ON *.* TO the account in [source] dsn",
        ) from error
    return [read(*row) for row in rows]


def _from_sql(format_id: int, gtrid_bytes: int, bqual_bytes: int, text: str) -> XaId:
    """Reads an id as MariaDB prints it, such as `'abc','d',7` or `X'00ff',X'80'`. Quotes inside are not doubled."""
    opening, width, data = ("X'", 2, bytes.fromhex) if text.startswith("X") else ("'", 1, str.encode)
    end = len(opening) + width * gtrid_bytes
    second = end + len(f"',{opening}")
    return XaId(
        format_id=format_id,
        gtrid=data(text[len(opening) : end]),
        bqual=data(text[second : second + width * bqual_bytes]),
    )


def _from_hex(format_id: int, gtrid_bytes: int, _bqual_bytes: int, text: str) -> XaId:
    data = bytes.fromhex(text.removeprefix("0x"))
    return XaId(format_id=format_id, gtrid=data[:gtrid_bytes], bqual=data[gtrid_bytes:])
