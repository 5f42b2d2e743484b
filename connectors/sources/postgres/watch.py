"""Looks at the catalogue while the source streams, in a thread with a connection of its own.

The publish loop takes what the looks found, and never waits for one. What a look found is acted on once the stream has
passed the end of the log at that look: then all rows that were written before are published, and reading the table
again sets them right.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from connectors.sources.postgres.admin import evidence
from connectors.sources.postgres.admin.catalog import Table, read_tables
from connectors.sources.postgres.admin.check import Requirements, publication, rights, server
from connectors.sources.postgres.admin.evidence import Evidence, Unlogged
from connectors.sources.postgres.session.connection import connect, translated
from connectors.sources.postgres.session.patience import Patience
from connectors.sources.postgres.snapshot.chunk_reader import LOCK_TIMEOUT_S, quoted, signature
from connectors.sources.postgres.values.lsn import lsn_text
from connectors.sources.postgres.values.text_to_json import SETTINGS
from envelope.checkpoint import Checkpoint
from envelope.entity import Entity
from envelope.errors import OVER_GAP, ChangelogError, Kind
from envelope.signal import FENCE_PREFIX

LOOK_S = 10.0
"""How often the catalogue is looked at, if nothing in the stream asks for it sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogLook:
    """What a look saw, and what the log does not tell of the time since the look before.

    `parts` are entries of a checkpoint's `windows`, of tables of which only some partitions are to be read.
    """

    evidence: Evidence
    unlogged: Sequence[Unlogged] = ()
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def until(self) -> int:
        """The log position that the stream has to pass before this counts."""
        return max((each.until for each in self.unlogged), default=0)


class Watch:
    """The looks of one opening; the first is compared with `before`. The log up to `covered` was looked at already.

    A server that does not answer for `answer_s` hangs.

    Raises in `passed` what a look found wrong (GAP, PRECONDITION), or why it could not be taken (CONNECTION).
    """

    def __init__(self, dsn: str, wanted: Requirements, before: Evidence, *, covered: int, answer_s: float) -> None:
        self._dsn, self._wanted, self._before = dsn, wanted, before
        self._patience = Patience(silence_s=answer_s, stopping=lambda: self._closing, stopping_s=0.0)
        self._changed = threading.Condition()  # guards what follows
        self._covered = self._asked = covered
        self._looks: list[CatalogLook] = []
        self._failure: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch")

    def start(self) -> None:
        """Takes the first look."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, lsn: int) -> None:
        """Takes a look soon, unless one was taken when the log had reached `lsn`."""
        with self._changed:
            self._asked = max(self._asked, lsn)
            self._changed.notify_all()

    def covers(self, lsn: int, timeout_s: float = 0.0) -> bool:
        """Whether a look was taken when the log reached `lsn`; waits for it up to the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._covered >= lsn or self._failure is not None, timeout_s)
            self._raise_failure()
            return self._covered >= lsn

    def passed(self, through_lsn: int) -> list[CatalogLook]:
        """The looks that count, now that the stream has passed `through_lsn`."""
        with self._changed:
            self._raise_failure()
            count = next((n for n, look in enumerate(self._looks) if look.until > through_lsn), len(self._looks))
            found, self._looks = self._looks[:count], self._looks[count:]
        return found

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The thread.

    def _run(self) -> None:
        try:
            settings = {**SETTINGS, "lock_timeout": f"{LOCK_TIMEOUT_S}s"}
            with connect(self._dsn, settings=settings, patience=self._patience) as connection:
                while not self._closing:
                    self._add(self._look(connection))
        except BaseException as error:  # noqa: BLE001 - raised again by who asks, or the looks would end in silence
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _add(self, look: CatalogLook) -> None:
        with self._changed:
            if self._looks and not self._looks[-1].unlogged and not look.unlogged:
                self._looks.pop()
            self._looks.append(look)
            self._covered = look.evidence.lsn
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._asked > self._covered, LOOK_S)

    def _look(self, connection: psycopg.Connection[Any]) -> CatalogLook:
        """What is new; while a table is locked by an ALTER TABLE, that must wait, and the look counts for nothing."""
        before, now = self._before, evidence.read(connection, self._wanted.publication, self._wanted.entities)
        try:
            look = self._compared(connection, before, now)
        except ChangelogError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            return CatalogLook(evidence=before)
        self._before = now
        return look

    def _compared(self, connection: psycopg.Connection[Any], before: Evidence, now: Evidence) -> CatalogLook:
        if now.tables == before.tables:
            return CatalogLook(evidence=now)
        tables = refuse(connection, self._wanted, before)
        found = list(evidence.unlogged(evidence.prove(connection, before, now), now))
        until = _mark(connection) if found else 0
        parts = {each.entity: _part(connection, tables[each.entity], each.leaves) for each in found if each.leaves}
        return CatalogLook(evidence=now, unlogged=[replace(each, until=until) for each in found], parts=parts)


def refuse(connection: psycopg.Connection[Any], wanted: Requirements, before: Evidence) -> dict[str, Table]:
    """The table of each entity. Raises ChangelogError where they can no longer be published as they are.

    PRECONDITION: a table is gone, or nothing keeps its key unique. GAP: the publication leaves something out; changes
    since the look `before` may be missing.
    """
    tables = {(table.schema, table.name): table for table in read_tables(connection)}
    for entity in wanted.entities:
        name = f"entity {entity.name}"
        if entity.table not in tables:
            hint = "rename it back, or take the entity off the configuration"
            raise ChangelogError(Kind.PRECONDITION, f"{name}: there is no table {'.'.join(entity.table)}", hint=hint)
        problem = tables[entity.table].key_problem(entity.key)
        if problem is not None:
            raise ChangelogError(Kind.PRECONDITION, f"{name}: {problem}", hint="then start the service again")
    bound = [(entity, tables[entity.table]) for entity in wanted.entities]
    with translated("looking at the publication"):
        found = publication.read(connection, wanted.publication)
        facts, relations = server.read(connection), rights.read(connection, [table for _, table in bound])
        told = list(publication.findings(connection, found, facts, wanted.publication, bound, relations))
    if found is None:
        raise _no_publication(wanted.publication)
    for finding in told:
        if finding.status == "fail":
            raise _gap(f"publication {finding.message}", finding.hint or "correct it,", before)
    return {entity.name: table for entity, table in bound}


def refuse_unpublished(
    connection: psycopg.Connection[Any], name: str, entities: Sequence[Entity], stored: Checkpoint
) -> None:
    """Raises ChangelogError (GAP) where the publication lacks a table that the changelog was begun with."""
    with translated(f"reading publication {name}"):
        found = publication.read(connection, name)
    if found is None and entities:
        raise _no_publication(name)
    kept = found.tables.keys() if found is not None and found.all_operations else set()
    missing = sorted(entity.table for entity in entities if entity.table not in kept)
    if missing:
        message = f"publication {name} no longer has all changes of {'.'.join(missing[0])}"
        raise _gap(message, "add it again", Evidence.parse(stored.source.get("publication", {})))


def _part(connection: psycopg.Connection[Any], table: Table, leaves: Collection[int]) -> dict[str, Any]:
    """The progress of a table that is read, but for these partitions."""
    read = {
        quoted((leaf.schema, leaf.name)): {"filenode": leaf.filenode, "pages": leaf.pages, "left": []}
        for leaf in table.leaves
        if leaf.oid not in leaves
    }
    return {"signature": signature(connection, (table.schema, table.name)), "leaves": read}


def _no_publication(name: str) -> ChangelogError:
    """Making it again is no way on: the server cannot decode what was written while it was away."""
    message = f"publication {name} does not exist, and the changelog was begun with it"
    return ChangelogError(Kind.GAP, message, hint=OVER_GAP)


def _gap(message: str, hint: str, before: Evidence | None) -> ChangelogError:
    since = "" if before is None else f": changes after log position {lsn_text(before.lsn)} may be missing"
    return ChangelogError(
        Kind.GAP,
        f"{message}{since}",
        hint=f"{hint} and start the service: it then reads the tables concerned again",
    )


def _mark(connection: psycopg.Connection[Any]) -> int:
    """Writes a message into the log after all that this look saw: the stream surely gets there."""
    with translated("marking the log"), connection.transaction():
        connection.execute("SET LOCAL synchronous_commit = local")  # a paused standby must not hold this back
        row = connection.execute(
            "SELECT (pg_logical_emit_message(true, %s, '') - '0/0')::int8", [FENCE_PREFIX]
        ).fetchone()
    assert row is not None
    return int(row[0])
