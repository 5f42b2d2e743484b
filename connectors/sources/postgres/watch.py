"""Watches the catalogue while the source streams. A thread does this, over a connection of its own.

Some changes of tables are not in the database's log. To find them, the thread reads the catalogue again and again, and
compares each reading with the previous one. The publish loop takes the results. It acts on a result only after the
stream has passed the position that the log had reached by the end of the reading. Then all rows from before the reading
are published, and the source can correct them by reading the table again.

A reading of the catalogue may also show that a table can no longer be published. If a row in the log shows this, too,
the stream reaches that row first and stops there. An operator can then decide what the service does with the row.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from changelog.connectors.patience import Patience
from changelog.connectors.sources.postgres.admin import evidence
from changelog.connectors.sources.postgres.admin.catalog import Table, read_tables
from changelog.connectors.sources.postgres.admin.check import Requirements, publication, rights, server
from changelog.connectors.sources.postgres.admin.evidence import Evidence, Unlogged
from changelog.connectors.sources.postgres.session.connection import connect, translated
from changelog.connectors.sources.postgres.session.quoting import identifier
from changelog.connectors.sources.postgres.snapshot.chunk_reader import LOCK_TIMEOUT_S, signature
from changelog.connectors.sources.postgres.values.lsn import lsn_text
from changelog.connectors.sources.postgres.values.text_to_json import SETTINGS
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import OVER_GAP, ChangelogError, Kind
from changelog.envelope.signal import FENCE_PREFIX

READ_INTERVAL_S = 10.0
"""The seconds between two readings of the catalogue, unless something in the stream requires one sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogReading:
    """The result of a reading: the state of the catalogue, and the changes of tables that the log may lack.

    `unlogged` holds those changes since the previous reading. `parts` has an item for each entity of which only some
    partitions must be read again: the entity's new entry in the checkpoint's `windows`.
    """

    evidence: Evidence
    unlogged: Sequence[Unlogged] = ()
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def until(self) -> int:
        """The log position that the stream has to pass before the source acts on this result."""
        return max((change.until for change in self.unlogged), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The result of a reading which shows that the tables can no longer be published completely.

    The kind of `error` is GAP or PRECONDITION. The source raises the error when the stream has passed the log position
    `until`. After a refusal, the catalogue is not read again.
    """

    error: ChangelogError
    until: int


class Watch:
    """A thread that reads the catalogue again and again while a source is open.

    The first reading is compared with `before`. The caller has already looked for changes up to the log position
    `covered`. A server that does not answer for `answer_s` seconds counts as hung.

    `covers` and `passed` raise the error of a `Refusal`, or the error with which a reading failed.
    """

    def __init__(
        self, dsn: str, requirements: Requirements, before: Evidence, *, covered: int, answer_s: float
    ) -> None:
        self._dsn, self._requirements, self._before = dsn, requirements, before
        self._patience = Patience(silence_s=answer_s, stopping=lambda: self._closing, stopping_s=0.0)
        self._changed = threading.Condition()  # guards the attributes below
        self._covered = self._requested = covered
        self._readings: list[CatalogReading] = []
        self._refusal: Refusal | None = None
        self._failure: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self) -> None:
        """Starts the thread, which at once reads the catalogue for the first time."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, lsn: int) -> None:
        """Requests a reading at once, unless an earlier reading has covered the log up to `lsn`."""
        with self._changed:
            self._requested = max(self._requested, lsn)
            self._changed.notify_all()

    def covers(self, lsn: int, timeout_s: float = 0.0) -> bool:
        """Returns whether a reading has covered the log up to `lsn`; waits for such a reading until the timeout.

        If a `Refusal` has ended the readings before that, raises the error of the refusal.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._covered >= lsn or self._ended, timeout_s)
            self._raise_failure()
            if self._covered < lsn and self._refusal is not None:
                raise self._refusal.error
            return self._covered >= lsn

    def passed(self, through_lsn: int) -> list[CatalogReading]:
        """Removes and returns the results that the source can act on now that the stream has reached `through_lsn`."""
        with self._changed:
            self._raise_failure()
            if self._refusal is not None and self._refusal.until <= through_lsn:
                raise self._refusal.error
            readings = self._readings
            count = next((n for n, reading in enumerate(readings) if reading.until > through_lsn), len(readings))
            self._readings = readings[count:]
        return readings[:count]

    @property
    def _ended(self) -> bool:
        """Whether the catalogue will not be read again."""
        return self._failure is not None or self._refusal is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The thread

    def _run(self) -> None:
        try:
            settings = {**SETTINGS, "lock_timeout": f"{LOCK_TIMEOUT_S}s"}
            with connect(self._dsn, settings=settings, patience=self._patience) as connection:
                while not self._closing and self._refusal is None:
                    self._add(self._read(connection))
        except BaseException as error:  # noqa: BLE001 - `passed` raises it; otherwise the thread would end silently
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _add(self, reading: CatalogReading | Refusal) -> None:
        with self._changed:
            if isinstance(reading, Refusal):
                self._refusal = reading
                self._changed.notify_all()
                return
            if self._readings and not self._readings[-1].unlogged and not reading.unlogged:
                self._readings.pop()
            self._readings.append(reading)
            self._covered = reading.evidence.lsn
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._requested > self._covered, READ_INTERVAL_S)

    def _read(self, connection: psycopg.Connection[Any]) -> CatalogReading | Refusal:
        """Reads the catalogue and compares it with the last reading.

        If an ALTER TABLE holds a lock for too long, or a partition is dropped during the reading, the reading is thrown
        away: the result repeats the previous reading, without changes. The next reading is compared with that previous
        one, too.
        """
        before = self._before
        now = evidence.read(connection, self._requirements.publication, self._requirements.entities)
        try:
            reading = self._compared(connection, before, now)
        except ChangelogError as error:
            if not isinstance(error.__cause__, (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable)):
                raise
            return CatalogReading(evidence=before)
        self._before = now
        return reading

    def _compared(
        self, connection: psycopg.Connection[Any], before: Evidence, now: Evidence
    ) -> CatalogReading | Refusal:
        if now.tables == before.tables:
            return CatalogReading(evidence=now)
        try:
            tables = refuse(connection, self._requirements, before)
        except ChangelogError as error:
            if error.kind not in (Kind.GAP, Kind.PRECONDITION) or isinstance(error.__cause__, psycopg.Error):
                raise  # an error of the server says nothing about the tables
            return Refusal(error=error, until=_mark(connection))
        changes = list(evidence.unlogged(evidence.prove(connection, before, now), now))
        until = _mark(connection) if changes else 0
        parts = {
            change.entity: _part(connection, tables[change.entity], change.leaves)
            for change in changes
            if change.leaves
        }
        return CatalogReading(evidence=now, unlogged=[replace(change, until=until) for change in changes], parts=parts)


def refuse(connection: psycopg.Connection[Any], requirements: Requirements, before: Evidence) -> dict[str, Table]:
    """Returns each entity's table. Raises ChangelogError if the tables can no longer be published completely.

    The kind is PRECONDITION if a table is gone, or has no unique index on its key. It is GAP if the publication is gone
    or leaves something out, because then changes that were made after the reading `before` may be missing.
    """
    tables = {(table.schema, table.name): table for table in read_tables(connection)}
    for entity in requirements.entities:
        name = f"entity {entity.name}"
        if entity.table not in tables:
            hint = "give the table its old name again, or remove the entity from the configuration"
            raise ChangelogError(Kind.PRECONDITION, f"{name}: there is no table {'.'.join(entity.table)}", hint=hint)
        problem = tables[entity.table].key_problem(entity.key)
        if problem is not None:
            hint = "correct this, then start the service again"
            raise ChangelogError(Kind.PRECONDITION, f"{name}: {problem}", hint=hint)
    entity_tables = [(entity, tables[entity.table]) for entity in requirements.entities]
    with translated("reading the publication"):
        published = publication.read(connection, requirements.publication)
        facts, relations = server.read(connection), rights.read(connection, [table for _, table in entity_tables])
        findings = list(
            publication.findings(connection, published, facts, requirements.publication, entity_tables, relations)
        )
    if published is None:
        raise _no_publication(requirements.publication)
    for finding in findings:
        if finding.status == "fail":
            raise _gap(f"publication {finding.message}", finding.hint or "correct it,", before)
    return {entity.name: table for entity, table in entity_tables}


def refuse_unpublished(
    connection: psycopg.Connection[Any], name: str, entities: Sequence[Entity], checkpoint: Checkpoint
) -> None:
    """Raises ChangelogError (GAP) if the publication no longer sends all changes of the entities' tables.

    `entities` are those whose tables have been read completely.
    """
    with translated(f"reading publication {name}"):
        published = publication.read(connection, name)
    if published is None and entities:
        raise _no_publication(name)
    complete = published.tables.keys() if published is not None and published.all_operations else set()
    missing = sorted(entity.table for entity in entities if entity.table not in complete)
    if missing:
        message = f"publication {name} no longer has all changes of the table {'.'.join(missing[0])}"
        raise _gap(message, "add the table again", Evidence.parse(checkpoint.source.get("publication", {})))


def _part(connection: psycopg.Connection[Any], table: Table, leaves: Collection[int]) -> dict[str, Any]:
    """Returns the progress to store for a table of which only the partitions `leaves` (OIDs) must be read again."""
    read_leaves = {
        identifier(leaf.schema, leaf.name): {"filenode": leaf.filenode, "pages": leaf.pages, "left": []}
        for leaf in table.leaves
        if leaf.oid not in leaves
    }
    with translated("reading the catalogue"):
        table_signature = signature(connection, (table.schema, table.name))
    return {"signature": table_signature, "leaves": read_leaves}


def _no_publication(name: str) -> ChangelogError:
    """Returns the error for a missing publication.

    The hint does not tell people to create the publication again, because the server cannot decode what was written
    while the publication was missing.
    """
    message = f"publication {name} no longer exists, although the changelog was begun with it"
    return ChangelogError(Kind.GAP, message, hint=OVER_GAP)


def _gap(message: str, hint: str, before: Evidence | None) -> ChangelogError:
    loss = "" if before is None else f": changes after log position {lsn_text(before.lsn)} may be missing"
    return ChangelogError(
        Kind.GAP,
        f"{message}{loss}",
        hint=f"{hint} and start the service: it then reads the affected tables again",
    )


def _mark(connection: psycopg.Connection[Any]) -> int:
    """Writes a message into the log, and returns the message's position: it is after everything that the reading saw.

    If nobody else writes to the database, only this message makes the stream pass that position soon.
    """
    with translated("marking the log"), connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")  # a paused standby must not delay the message
        row = connection.execute(
            "SELECT (pg_logical_emit_message(true, %s, '') - '0/0')::int8", [FENCE_PREFIX]
        ).fetchone()
    assert row is not None
    return int(row[0])
