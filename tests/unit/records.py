"""Makes records and checkpoints for tests."""

from datetime import UTC, datetime, timedelta

from msgspec import Raw

from changelog.envelope.checkpoint import Checkpoint
from changelog.envelope.model import MISSING, Envelope, Missing, Op, Place, Provenance, Record, Source, Stamp
from changelog.envelope.position import Position, commit_text

BEGIN = datetime(2026, 11, 21, 3, 10, 2, 886044, tzinfo=UTC)


def record(
    op: Op,
    current: str | None = None,
    original: str | Missing | None = MISSING,
    *,
    commit: int = 1,
    ordinal: int = 2,
    key: str = "42",
    entity: str = "order",
    service: str = "order-api",
    partition: int = 0,
    unavailable: tuple[str, ...] = (),
    unavailable_original: tuple[str, ...] = (),
    moved_to: Place | None = None,
    moved_from: Place | None = None,
) -> Record:
    """Returns a change, by default of the row `order 42`. It was committed `commit` seconds after BEGIN."""
    source = Source(
        connector="postgres",
        name="booking",
        database="app",
        table=f"public.{entity}",
        op=op,
        position=Position(1, commit, ordinal),
        transaction=str(700 + commit),
        committed_at=BEGIN + timedelta(seconds=commit),
        unavailable=unavailable,
        unavailable_original=unavailable_original,
    )
    stamp = Stamp(api_version="v2", service_name=service, identifier=f"req-{commit}")
    return Record(
        entity=entity,
        place=Place(key=key, partition=partition),
        moved_to=moved_to,
        moved_from=moved_from,
        envelope=Envelope(
            provenance=Provenance(stamp=stamp, source=source),
            current=None if current is None else Raw(current),
            original=Raw(original) if isinstance(original, str) else original,
        ),
    )


def checkpoint(commit: int) -> Checkpoint:
    """Returns the checkpoint after a transaction whose last change is `record(…, commit=commit)`."""
    return Checkpoint(position=Position(1, commit, 2), through=commit_text(commit), epoch=1)
