"""Follows the changelog of the demo: counts the changes, and keeps the newest state of each key."""

import threading
import time
from collections import Counter

import msgspec
import pyarrow as pa

from changelog.connectors.sinks import Log
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op

POLL_S = 0.1

_COLUMNS = ("entity", "key", "op", "position", "service_name", "identifier", "current")


class Reader:
    """Follows a changelog in a thread, until `close`.

    `changes` has the number of messages for each entity and op. `rows_read` is the number of messages whose rows were
    read from tables, and `streamed` the number of all other messages. `writers` has, for each sample application, how
    many of the streamed changes it made. `states` has, for each entity and key, the newest state of the row as JSON
    text; a key whose row was deleted is not in it. `newest_identifier` is the identifier in the stamp of the streamed
    change with the highest position.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stop = threading.Event()
        self._last_pass_began = False
        self._failure: ChangelogError | None = None
        self._thread = threading.Thread(target=self._follow, name="reader", daemon=True)
        self.rows_read = self.streamed = 0
        self.changes: Counter[tuple[str, str]] = Counter()
        self.writers: Counter[str] = Counter()
        self.states: dict[str, dict[str, str]] = {}
        self.newest_identifier = self._newest_position = ""
        self._thread.start()

    def close(self) -> None:
        """Reads the rest of the changelog, then stops. Raises the error that ended the thread, if any."""
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises the ChangelogError that ended the thread, if there was one."""
        if self._failure is not None:
            raise self._failure

    def state(self, entity: str, columns: tuple[str, ...]) -> dict[str, tuple[str | None, ...]]:
        """Returns the values of these columns, as strings, in the newest state of each key of the entity."""
        decoded = {key: msgspec.json.decode(text) for key, text in self.states.get(entity, {}).items()}
        return {
            key: tuple(None if state[column] is None else str(state[column]) for column in columns)
            for key, state in decoded.items()
        }

    def _follow(self) -> None:
        try:
            while checkpoint_of(self._log) is None:
                if self._stop.wait(POLL_S):
                    return
            for rows in self._log.follow(wait=self._wait):
                self._take(rows)
        except ChangelogError as error:
            self._failure = error

    def _wait(self) -> bool:
        """Waits for more changes, and returns True. After `close`, returns True only once more, and then False.

        False ends the reading. One more pass is needed after `close`, because the reader reads a store partition by
        partition: it may have read a partition before the last change was written there.
        """
        if self._stop.is_set():
            is_last_pass, self._last_pass_began = self._last_pass_began, True
            return not is_last_pass
        time.sleep(POLL_S)
        return True

    def _take(self, rows: pa.RecordBatch) -> None:
        for entity, key, op, position, service, identifier, current in zip(
            *(rows.column(name).to_pylist() for name in _COLUMNS), strict=True
        ):
            self.changes[entity, op] += 1
            states = self.states.setdefault(entity, {})
            if current is None:
                states.pop(key, None)
            else:
                states[key] = current
            if op == Op.READ:
                self.rows_read += 1
            else:
                self.streamed += 1
                self.writers[service] += 1
                if position >= self._newest_position:
                    self._newest_position, self.newest_identifier = position, identifier


def checkpoint_of(log: Log) -> Checkpoint | None:
    """Returns the checkpoint of the changelog, or None if there is no checkpoint or no changelog yet."""
    try:
        return log.checkpoint()
    except ChangelogError as error:
        if error.kind is Kind.PRECONDITION:
            return None
        raise
