"""What is done about changes that the log does not tell, once a look at the catalogue has noticed them."""

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
from changelog.connectors.sources.postgres.watch import CatalogLook, Watch
from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.entity import Entity
from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.model import Op
from changelog.envelope.position import Position

_TRUNCATE = pa.scalar(Op.TRUNCATE.value)

_log = structlog.get_logger("postgres")


class Noticed:
    """What the looks of one opening noticed. `watch` takes them; `before` is what a checkpoint keeps at first."""

    def __init__(self, watch: Watch, before: Evidence, entities: Sequence[Entity], opened: int) -> None:
        self.watch, self.before, self._opened = watch, before, opened
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
        wanted: Requirements,
        stored: Checkpoint | None,
        shapes: Mapping[str, Any],
        *,
        answer_s: float,
    ) -> "Noticed":
        """The first look is compared with what the checkpoint holds; `stored` is None where another cluster wrote it.

        Of entities that are new, or configured otherwise (`shapes`), it is compared with the catalogue as it is now.
        """
        now = evidence.read(connection, wanted.publication, wanted.entities)
        known = None if stored is None else Evidence.parse(stored.source.get("publication", {}))
        before = now
        if stored is not None and known is not None:
            same = [name for name, shape in shapes.items() if stored.settings.get(name) == shape]
            before = replace(known, tables={**now.tables, **known.of(same).tables})
        covered = now.lsn if now.tables == before.tables else 0
        watch = Watch(dsn, wanted, before, covered=covered, answer_s=answer_s)
        return cls(watch, before, wanted.entities, now.lsn)

    @property
    def withholds(self) -> bool:
        """Whether a piece waits for a look."""
        return self._withheld is not None

    def withhold(self, piece: Piece | None, described: int) -> Piece | None:
        """The piece of a block; if a table was `described` there, only once a look at the catalogue came after that.

        A block may describe a table and give no piece: then the next piece waits for the look.
        """
        self._described = max(self._described, described)
        if piece is None or self.watch.covers(self._described):
            return piece
        self.watch.ask(self._described)
        self._withheld = piece
        return None

    def release(self, timeout_s: float) -> Piece | None:
        """The piece that waits, once a look finds nothing wrong; None when the timeout passes first."""
        assert self._withheld is not None
        if not self.watch.covers(self._described, timeout_s):
            return None
        piece, self._withheld = self._withheld, None
        return piece

    def heard(self, statements: Sequence[tuple[bytes, int]], rows: Sequence[pa.RecordBatch]) -> None:
        """The event trigger wrote these statements, each with its commit; these rows are published."""
        for content, commit in statements:
            self._statements.add(content, commit)
            self.watch.ask(commit)
        for batch in rows:
            for row in batch.filter(pc.equal(batch.column("op"), _TRUNCATE)).select(["entity", "position"]).to_pylist():
                self._truncates[row["entity"]] = Position.parse(row["position"]).commit
                self.watch.ask(self._truncates[row["entity"]])

    def settle(self, checkpoint: Checkpoint, repairs: Repairs) -> tuple[Checkpoint, Repairs]:
        """What is left to do, now that the stream has passed what some looks noticed.

        Raises ChangelogError: GAP where an entity's policy is to stop, and what a look found wrong.
        """
        for look in self.watch.passed(through_lsn(checkpoint)):
            windows = checkpoint.windows
            for change in look.unlogged:
                repairs, windows = self._settle_one(checkpoint, repairs, windows, look, change)
            source = {**checkpoint.source, "publication": look.evidence.to_json()}
            checkpoint = replace(checkpoint, windows=windows, source=source, repairs=repairs.to_json())
        return checkpoint, repairs

    def _settle_one(
        self, checkpoint: Checkpoint, repairs: Repairs, windows: Windows, look: CatalogLook, change: Unlogged
    ) -> tuple[Repairs, Windows]:
        if self._is_told(change):
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
        part = None if change.leaves is None else look.parts.get(change.entity, {})
        start = str(checkpoint.complete_before)
        return read_again(repairs, windows, change.entity, start, sweep=change.sweep, part=part)

    def _is_told(self, change: Unlogged) -> bool:
        """Whether a TRUNCATE of the whole table, which the log tells, explains the change.

        A look follows it at once, so hardly anything else can have come in between. Of the time before this opening
        that cannot be said.
        """
        truncated = self._truncates.get(change.entity, 0)
        return change.truncated and self._opened <= change.since <= truncated <= change.until


def _gap(change: Unlogged, since: str, until: str) -> ChangelogError:
    return ChangelogError(
        Kind.GAP,
        f"entity {change.entity}: {change.why} between the log positions {since} and {until}, "
        "and changes made meanwhile may be missing",
        hint=f'set on_unlogged = "rebuild" in [entities.{change.entity}] and start the service: '
        "it reads the table again and deletes what is gone",
    )
