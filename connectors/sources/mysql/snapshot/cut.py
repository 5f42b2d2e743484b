"""Takes a cut through the server: a transaction whose snapshot sees exactly the transactions before a place in the log.

MariaDB says up to which place of the log a snapshot sees the transactions. This is wrong only while XA transactions
commit, because their commit is in the log before snapshots see it. MySQL does not say the place at all. So with MySQL,
and with MariaDB while an XA transaction is prepared, `FLUSH TABLES WITH READ LOCK` stops all writers for a moment: the
snapshot is taken while nobody can commit. The lock waits for running statements, and other sessions wait for the lock.
So each attempt is short, and there is a longer pause before the next attempt.

Locks on the definitions of the tables are taken before the snapshot. Without them, another table could get the name of
a published table just after the snapshot, and would be read in its place.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from changelog.connectors.sources.fences import NoFenceError
from changelog.connectors.sources.mysql.admin.server_log import log_end, snapshot_place, xa_commits
from changelog.connectors.sources.mysql.session.connection import Connection
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.session.server_errors import LOCK_TIMEOUT, number_of
from changelog.connectors.sources.mysql.snapshot.xa_commits import prepared_transactions
from changelog.connectors.sources.mysql.values.selected import IDLE_S
from changelog.envelope.errors import ChangelogError, Kind

_LOCK_WAIT_S = 1
_PAUSE_S = 3.0
"""How long one attempt waits for a lock, and the pause before the next one, in seconds."""

LOST_S = 10
"""The host of the session that stops the writers may go away. If the session sends nothing for this many seconds, the
server ends it, and the writers continue.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The transactions that begin before the coordinate `end`. `gtids` are their GTIDs, as the server prints them."""

    end: int
    gtids: str


def take_cut(reader: Connection, control: Connection, tables: Sequence[str], *, deadline: float) -> Cut:
    """Begins a transaction of `reader` whose snapshot is a cut, and returns the cut. `control` is another connection.

    `tables` are the quoted names of the tables that `reader` will read; their definitions cannot change until its
    transaction ends. `deadline` (in seconds of `time.monotonic`) limits the wait for locks. Raises NoFenceError if no
    cut could be taken before the deadline, or if the account may not lock tables.
    """
    for connection in (reader, control):
        connection.execute(f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    while True:
        try:
            return _unlocked_cut(reader, control, tables) or _locked_cut(reader, control, tables)
        except ChangelogError as error:
            if number_of(error) != LOCK_TIMEOUT:
                raise
            reader.execute("ROLLBACK")
            control.execute("ROLLBACK")
            if time.monotonic() > deadline:
                raise NoFenceError(
                    "a table is locked: by a migration, or by a statement that does not end",
                    hint="run the job again later, or wait longer (--wait)",
                    later=True,
                ) from error
        time.sleep(_PAUSE_S)


def _unlocked_cut(reader: Connection, control: Connection, tables: Sequence[str]) -> Cut | None:
    """Takes a cut of MariaDB; returns None for MySQL, and if an XA COMMIT may have run meanwhile.

    The server counts an XA COMMIT when the statement begins, and lists the prepared transaction until the statement has
    ended. So if the list is empty and the count has not changed, no XA COMMIT was running.
    """
    if control.flavour is not Flavour.MARIADB:
        return None
    commits = xa_commits(control.query)
    control.execute("START TRANSACTION READ ONLY")
    _open_tables(control, tables)
    prepared = prepared_transactions(control)
    _begin(reader, tables)
    control.execute("ROLLBACK")
    if prepared or xa_commits(control.query) != commits:
        return None
    return _snapshot_cut(reader)


def _locked_cut(reader: Connection, control: Connection, tables: Sequence[str]) -> Cut:
    """Takes a cut while nobody can commit."""
    with read_lock(control):
        _begin(reader, tables)
        end = log_end(control.query, control.version)
    return Cut(end=end.coordinate, gtids=end.gtids.text)


@contextlib.contextmanager
def read_lock(control: Connection) -> Iterator[None]:
    """Stops all writers during the block. Raises NoFenceError if the account may not do that."""
    control.execute(f"SET SESSION wait_timeout = {LOST_S}")
    try:
        _lock(control)
        yield
    finally:
        if not control.closed:
            control.execute("UNLOCK TABLES")
            control.execute(f"SET SESSION wait_timeout = {IDLE_S}")


def _lock(control: Connection) -> None:
    try:
        control.execute("FLUSH TABLES WITH READ LOCK")
    except ChangelogError as error:
        if error.kind is not Kind.ACCESS:
            raise
        raise NoFenceError(
            "the account may not stop writers for the moment in which the snapshot is taken",
            hint="GRANT RELOAD ON *.* to the account in [source] dsn",
            later=False,
        ) from error


def _begin(reader: Connection, tables: Sequence[str]) -> None:
    reader.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    _open_tables(reader, tables)


def _open_tables(connection: Connection, tables: Sequence[str]) -> None:
    """Takes the locks that keep the definitions of tables as they are until the transaction ends."""
    for table in tables:
        connection.query(f"SELECT 1 FROM {table} LIMIT 0")


def _snapshot_cut(reader: Connection) -> Cut:
    """Returns the cut: MariaDB says up to which place of the log the snapshot sees the transactions."""
    place = snapshot_place(reader.query)
    return Cut(end=place.coordinate, gtids=place.gtids(reader.query).text)
