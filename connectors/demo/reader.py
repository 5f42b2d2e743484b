"""An example of a changelog reader: it counts changes and folds them into states."""

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

    `changes` counts by entity and op. `read` counts rows that were read from tables, `streamed` all others, and
    `writers` the latter by service. `states` has the newest state of each entity's keys as JSON text, `last` the
    identifier at the newest position.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._stop = threading.Event()
        self._looked_again = False
        self._failure: ChangelogError | None = None
        self._thread = threading.Thread(target=self._follow, name="reader", daemon=True)
        self.read = self.streamed = 0
        self.changes: Counter[tuple[str, str]] = Counter()
        self.writers: Counter[str] = Counter()
        self.states: dict[str, dict[str, str]] = {}
        self.last = self._newest = ""
        self._thread.start()

    def close(self) -> None:
        """Reads the rest of the changelog, then stops. Raises the error that ended the thread, if any."""
        self._stop.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raises the ChangelogError that ended the reading, if one did."""
        if self._failure is not None:
            raise self._failure

    def state(self, entity: str, columns: tuple[str, ...]) -> dict[str, tuple[str | None, ...]]:
        """The given columns of every key's state, as texts."""
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
        """Waits, or ends after one more pass: the reader may have passed one part of a store before its last change."""
        if self._stop.is_set():
            last, self._looked_again = self._looked_again, True
            return not last
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
                self.read += 1
            else:
                self.streamed += 1
                self.writers[service] += 1
                if position >= self._newest:
                    self._newest, self.last = position, identifier


def checkpoint_of(log: Log) -> Checkpoint | None:
    """The changelog's checkpoint; None if it has none, or if there is no changelog yet."""
    try:
        return log.checkpoint()
    except ChangelogError as error:
        if error.kind is Kind.PRECONDITION:
            return None
        raise
