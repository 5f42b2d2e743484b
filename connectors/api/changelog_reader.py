"""Defines `ChangelogReader`, which `changelog.open` returns. It reads changes, and makes Arrow tables of rows."""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from changelog.connectors.api.as_of import position_at
from changelog.connectors.api.blame_table import blame_table
from changelog.connectors.api.choices import ChangeChoice, When, moment_of
from changelog.connectors.api.history_table import history_table
from changelog.connectors.api.key_values import Key, key_texts
from changelog.connectors.api.states_table import states_table
from changelog.connectors.history.key_blame import key_blame
from changelog.connectors.history.key_history import key_history
from changelog.connectors.history.moments import position_before
from changelog.connectors.history.refusals import no_change
from changelog.connectors.sinks import Log
from changelog.envelope.columnar import batch
from changelog.envelope.entity import RESERVED
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.key import key_text
from changelog.envelope.model import Record
from changelog.envelope.position import Position

POLL_S = 0.2
"""Seconds between two searches for new changes."""


class ChangelogReader:
    """A changelog that is open for reading. `changelog.open` makes it.

    Every call of a method reads the files or the topics anew, and sees only committed changes. No method leaves a file
    or a connection open, so there is nothing to close. Every method may raise `changelog.ChangelogError`. Its kind is
    USAGE for an unknown entity, for a key that the changelog never had, and for an invalid argument.

    `entity` is the name of an entity. `key` is the key of one row: the value of its key column, such as `42` or
    `"DE-7"`, or a tuple or list with the values of all key columns in the key's order. Instead of a value, its
    canonical text can be given (docs/reference/types.md). A moment is a position, or a time with a time zone; both can
    also be given as text.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def __repr__(self) -> str:
        return f"<{self._log.where}>"

    def entities(self) -> list[str]:
        """Returns the names of the entities, sorted. Entities without any change yet are included."""
        checkpoint = self._log.checkpoint()
        names = {*self._log.counts(), *(() if checkpoint is None else checkpoint.settings)}
        return sorted(names - RESERVED)

    def position(self) -> Position | None:
        """Returns the position up to which the changelog is complete now.

        Returns None if the changelog is empty, or if it has no checkpoint, so that its end is not known. An archive of
        topics has no checkpoint, and topics have none if no service writes to them.
        """
        checkpoint = self._log.checkpoint()
        return None if checkpoint is None else checkpoint.reached

    def changes(
        self,
        entity: str | None = None,
        key: Key | None = None,
        *,
        since: When | None = None,
        until: When | None = None,
        service: str | None = None,
        identifier: str | None = None,
    ) -> Iterator[Record]:
        """Yields the changes that are stored now: each is a `Record`, with its entity, key and envelope.

        Changes at `since` and at `until` are included. `service` and `identifier`, if given, select the changes whose
        stamp names this service and this identifier. From a file log or an archive, the changes come in the order of
        their positions. From Kafka, the changes of one partition come in this order, but changes of different
        partitions do not, unless `key` is given. Holds a few thousand changes in memory. A malformed moment or key
        raises an error at once; all other errors are raised when the caller takes the first change. A file log and an
        archive read fewer files if `entity`, `key` or `identifier` is given, or if `since` is a position.
        """
        choice = ChangeChoice(
            since=moment_of("since", since),
            until=moment_of("until", until),
            service=service,
            identifier=identifier,
        )
        if key is None:
            after = position_before(choice.since)
            return _chosen(self._log.read(entity=entity, after=after, identifier=identifier), choice)
        return _chosen(self._of_key(entity, _text(key)), choice)

    def _of_key(self, entity: str | None, key: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a key. Raises ChangelogError (USAGE) if there are none."""
        is_known = False
        for rows in self._log.read(entity=entity, key=key):
            is_known = True
            yield rows
        if not is_known:
            raise no_change(self._log, entity or "any entity", key)

    def table(self, entity: str, *, as_of: When | None = None, provenance: bool = True) -> pa.Table:
        """Returns the rows of an entity as an Arrow table: one typed row for each key that exists.

        With `as_of`, the rows and columns are those that the entity had at that moment; without it, those that it has
        now. The table has the entity's columns (docs/reference/types.md has their types). With `provenance`, it also
        has the columns `_key`, `_position`, `_op`, `_committed_at`, `_api_version`, `_service_name`, `_identifier` and
        `_context`, which describe each row's last change. Two more columns say why other columns of the row are null:
        `_unavailable` names those whose value the database's log did not send, and `_out_of_range` those whose value
        does not fit their type. The rows have no order. The Spark job `rebuild_view` makes the same rows. The rows
        include all changes up to the position that the table's metadata `changelog.position` gives.

        Holds the table in memory, and one change for each key that the entity ever had. In addition to the errors of
        every method, raises ChangelogError: USAGE for a moment before the first change, and for a position past the
        end; PRECONDITION if the entity has no change yet, so that its columns are unknown.
        """
        at = moment_of("as_of", as_of)
        until = self.position() if at is None else position_at(self._log, at)
        return states_table(self._log, entity, until=until, provenance=provenance)

    def history(self, entity: str, key: Key, *, since: When | None = None, until: When | None = None) -> pa.Table:
        """Returns the changes of one key as an Arrow table with a row for each change, in their order.

        The columns are `position`, `committed_at`, `op`, `key`, `service_name`, `api_version`, `identifier`, `context`,
        `transaction`, `current`, `original` and `patch`. `current` is the row after the change, and `original` the row
        before it. These two, `context` and `patch` are JSON text. For an update whose `original` is known, `patch` is
        the JSON Patch (RFC 6902) from `original` to `current`; otherwise, it is null. If the row moved to this key from
        another one, the table also has the row's changes before the move, and their `key` is the other key. A truncate
        that deleted the row has a null `key`. Changes at `since` and at `until` are included.
        """
        records = key_history(
            self._log, entity, _text(key), since=moment_of("since", since), until=moment_of("until", until)
        )
        return history_table(records)

    def blame(self, entity: str, key: Key, *, at: When | None = None) -> pa.Table:
        """Returns an Arrow table that says who set each attribute that a row has now, or had at the moment `at`.

        An attribute is a column, or a value inside a json column. In the table, `path` is the attribute's JSON Pointer
        (RFC 6901), such as `/address/street`. `value` is the JSON text of its value. `before` is the JSON text of its
        value before the change that set it, null if that value is unknown or did not exist. `existed` says whether the
        attribute existed before that change, and is null if this is unknown. The columns `service_name`, `api_version`,
        `identifier`, `context`, `op`, `position`, `committed_at` and `transaction` describe that change. If the writer
        is unknown, for example because the value was first seen when the row was read from its table, the first four of
        these columns are null. Then the other four describe the change, or the reading of the row, in which the value
        was first seen. The table is empty if the row does not exist at that moment.
        """
        return blame_table(key_blame(self._log, entity, _text(key), at=moment_of("at", at)))

    def follow(
        self,
        entity: str | None = None,
        key: Key | None = None,
        *,
        last: int = 0,
        service: str | None = None,
        timeout: float | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[Record]:
        """Yields the newest `last` changes that are stored now, and then new changes as they are stored.

        Looks for new changes five times a second. Whenever there is no new change, it ends if `stop()` returns True, or
        if `timeout` seconds have passed since the call of `follow`. Without `stop` and `timeout`, it never ends. The
        changes come in the same order as from `changes`.
        """
        if last < 0:
            raise ChangelogError(Kind.USAGE, f"last={last} is not a number of changes", hint="give 0 or more")
        deadline = None if timeout is None else time.monotonic() + timeout

        def wait() -> bool:
            rest = POLL_S if deadline is None else min(POLL_S, deadline - time.monotonic())
            if rest <= 0 or (stop is not None and stop()):
                return False
            time.sleep(rest)
            return True

        text = None if key is None else _text(key)
        batches = self._log.follow(entity=entity, key=text, last=last, wait=wait)
        return _chosen(batches, ChangeChoice(service=service))


def _text(key: Key) -> str:
    """Returns the text of a key. `key` may already be this text, even if the key has several columns."""
    return key_text(key_texts(key))


def _chosen(batches: Iterator[pa.RecordBatch], choice: ChangeChoice) -> Iterator[Record]:
    for rows in batches:
        yield from filter(choice.includes, batch.records(rows))
