"""Handles *unlogged* changes of tables: the database's log lacks them, but the catalogue shows traces of them.

The module `watch` reads the catalogue regularly and compares each reading with the previous one. This can show, for
example, that a table was taken out of the publication for a while. Depending on the entity's policy `on_unlogged`, the
source then reads the table again, stops, or ignores the change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from changelog.connectors.capture.tables.repairs import Repairs, Windows, read_again
from changelog.connectors.sources import Piece
from changelog.connectors.sources.postgres.admin import evidence
from changelog.connectors.sources.postgres.admin.check import Requirements
from changelog.connectors.sources.postgres.admin.ddl import Statements
from changelog.connectors.sources.postgres.admin.evidence import Evidence, Unlogged
from changelog.connectors.sources.postgres.values.lsn import through_lsn
from changelog.connectors.sources.postgres.watch import CatalogReading, Watch
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position

_TRUNCATE = pa.scalar(Op.TRUNCATE.value)

_log = structlog.get_logger("postgres")


class Noticed:
    """The unlogged changes that were noticed since the source was opened.

    `watch` reads the catalogue in a thread. Its first reading is compared with `before`, the evidence of an earlier
    reading. The checkpoint stores this evidence until the evidence of a later reading replaces it. `opened_at` is the
    end of the log when the source was opened.
    """

    def __init__(self, watch: Watch, before: Evidence, entities: Sequence[Entity], opened_at: int) -> None:
        self.watch, self.before, self._opened_at = watch, before, opened_at
        self._entities = {entity.name: entity for entity in entities}
        self._statements = Statements()
        self._truncates: dict[str, int] = {}
        self._described = 0
        self._withheld: Piece | None = None

    @classmethod
    def begin(
        cls,
        connection: psycopg.Connection[Any],
        dsn: str,
        requirements: Requirements,
        checkpoint: Checkpoint | None,
        shapes: Mapping[str, Any],
        *,
        answer_s: float,
    ) -> "Noticed":
        """Prepares the readings for an opened source. The first reading is compared with the evidence in `checkpoint`.

        `checkpoint` is None if the changelog is new or comes from another cluster. If an entity is new, or its settings
        (`shapes`) have changed, the checkpoint has no comparable evidence for it. For this entity, the first reading is
        compared with the catalogue as it is now.
        """
        now = evidence.read(connection, requirements.publication, requirements.entities)
        earlier = None if checkpoint is None else Evidence.parse(checkpoint.source.get("publication", {}))
        before = now
        if checkpoint is not None and earlier is not None:
            comparable = [name for name, shape in shapes.items() if checkpoint.settings.get(name) == shape]
            before = replace(earlier, tables={**now.tables, **earlier.of(comparable).tables})
        covered = now.lsn if now.tables == before.tables else 0
        watch = Watch(dsn, requirements, before, covered=covered, answer_s=answer_s)
        return cls(watch, before, requirements.entities, now.lsn)

    @property
    def withholds(self) -> bool:
        """Whether a piece is held back until the catalogue has been read."""
        return self._withheld is not None

    def withhold(self, piece: Piece | None, described: int) -> Piece | None:
        """Returns `piece`, or holds it back and returns None.

        `described` is the commit position of the last transaction in which the stream described a table, 0 if there is
        none. PostgreSQL describes a table again after each ALTER TABLE, before the table's next row. Only a reading of
        the catalogue can show that this ALTER TABLE has dropped, for example, the unique index of the key. So a piece
        that contains a description, or that comes after one, is held back until a reading has covered the position of
        the description. If no piece follows from the frames with the description (`piece` is None), the next piece is
        held back.

        If the reading shows that the table can no longer be published, the whole piece is dropped, including its rows
        from before the description. The stream delivers these rows again after the next start.
        """
        self._described = max(self._described, described)
        if piece is None or self.watch.covers(self._described):
            return piece
        self.watch.ask(self._described)
        self._withheld = piece
        return None

    def release(self, timeout_s: float) -> Piece | None:
        """Returns the piece that was held back, once a reading has found nothing wrong; None if the timeout passes
        first.
        """
        assert self._withheld is not None
        if not self.watch.covers(self._described, timeout_s):
            return None
        piece, self._withheld = self._withheld, None
        return piece

    def heard(self, statements: Sequence[tuple[bytes, int]], rows: Sequence[pa.RecordBatch]) -> None:
        """Records what the stream has delivered. Requests a reading of the catalogue after each statement and each
        truncate, because each of them can be the trace of an unlogged change.

        `statements` are messages of the event trigger, each with its commit position. `rows` are the rows to publish;
        only the truncates in them matter here.
        """
        for content, commit in statements:
            self._statements.add(content, commit)
            self.watch.ask(commit)
        for batch in rows:
            for row in batch.filter(pc.equal(batch.column("op"), _TRUNCATE)).select(["entity", "position"]).to_pylist():
                self._truncates[row["entity"]] = Position.parse(row["position"]).commit
                self.watch.ask(self._truncates[row["entity"]])

    def settle(self, checkpoint: Checkpoint, repairs: Repairs) -> tuple[Checkpoint, Repairs]:
        """Handles the unlogged changes from before the end of `checkpoint`; returns the new checkpoint and repairs.

        Raises ChangelogError: GAP if the policy for a changed entity is `stop`, or the error of a reading.
        """
        for reading in self.watch.passed(through_lsn(checkpoint)):
            windows = checkpoint.windows
            for change in reading.unlogged:
                repairs, windows = self._settle_one(checkpoint, repairs, windows, reading, change)
            source = {**checkpoint.source, "publication": reading.evidence.to_json()}
            checkpoint = replace(checkpoint, windows=windows, source=source, repairs=repairs.to_json())
        return checkpoint, repairs

    def _settle_one(
        self, checkpoint: Checkpoint, repairs: Repairs, windows: Windows, reading: CatalogReading, change: Unlogged
    ) -> tuple[Repairs, Windows]:
        if self._is_logged(change):
            return repairs, windows
        policy = self._entities[change.entity].on_unlogged
        since, until = self._statements.bounds(change)
        if policy == "stop":
            raise _gap(change, since, until)
        _log.warning(
            "changes may be missing from the log",
            entity=change.entity,
            why=change.why,
            since=since,
            until=until,
            policy=policy,
        )
        if policy == "ignore":
            return repairs, windows
        part = None if change.leaves is None else reading.parts.get(change.entity, {})
        start = str(checkpoint.complete_before)
        return read_again(repairs, windows, change.entity, start, sweep=change.sweep, part=part)

    def _is_logged(self, change: Unlogged) -> bool:
        """Returns whether the change is nothing but a TRUNCATE of the whole table, and the stream has delivered this
        TRUNCATE.

        The catalogue is read right after each TRUNCATE in the stream, so there is hardly time for another change
        between the TRUNCATE and the reading. Before the source was opened, nothing read the catalogue. So a change from
        that time may have another cause than the TRUNCATE.
        """
        truncated = self._truncates.get(change.entity, 0)
        return change.truncated and self._opened_at <= change.since <= truncated <= change.until


def _gap(change: Unlogged, since: str, until: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"entity {change.entity}: {change.why} between the log positions {since} and {until}, "
        "and changes made meanwhile may be missing",
        hint=f'set on_unlogged = "rebuild" in [entities.{change.entity}] and start the service: '
        "it reads the table again and publishes a delete for each missing row",
    )
