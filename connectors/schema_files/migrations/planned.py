"""Defines the verdict on a migration, for each entity: what changes, and what stops the service or breaks a reader."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from changelog.connectors.sources.migrations import Alteration
from changelog.envelope.errors import ChangelogError
from changelog.schemas import avro

THE_SERVICE = "the service"
"""The value of `Trouble.breaks` for a trouble that stops the service."""

SEE_CHECK = "see `changelog check`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A reason why the service would stop, or why readers would break.

    `line` is the line of the statement that causes the trouble, and `path` is a pointer into the schema. `breaks` says
    who breaks. `against` is the label of the schema version with which they break. `strict` is set if Avro's own rules
    allow the change, and only this program's stricter rules forbid it.
    """

    rule: str
    line: int
    path: str
    breaks: str
    against: str
    text: str
    hint: str
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a migration does to one entity.

    If the entity is new, `line` is the line of the statement that creates its table. `stops` says that the service
    would stop. If the service would read the table again, `reads_again` has the columns that are the reason. `asks`
    says that the service would wait for `changelog schemas accept` before it reads the table again. `unseen` describes
    changes of stored values that the service cannot see.
    """

    entity: str
    table: str
    is_new: bool = False
    line: int = 0
    alterations: Sequence[Alteration] = ()
    troubles: Sequence[Trouble] = ()
    notes: Sequence[str] = ()
    stops: bool = False
    reads_again: Sequence[str] = ()
    asks: bool = False
    unseen: Sequence[str] = ()

    @property
    def changed(self) -> bool:
        """Whether anything happens to the entity."""
        return bool(self.is_new or self.alterations or self.troubles or self.notes or self.reads_again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """The schemas with which each entity's table is compared, by entity.

    `files` has the schema in the entity's file. `versions` has the versions in the changelog, as pairs of a label and a
    schema.
    """

    files: Mapping[str, avro.Schema]
    versions: Mapping[str, Sequence[tuple[str, avro.Schema]]]


def stop(rule: str, line: int, text: str, hint: str) -> Trouble:
    """Returns a trouble that stops the service."""
    return Trouble(rule=rule, line=line, path="/", breaks=THE_SERVICE, against="", text=text, hint=hint)


def reasons(name: str, error: ChangelogError, line: int) -> Iterator[Trouble]:
    """Yields one trouble for each reason in `error`, which says why the entity `name` no longer fits its table.

    All these troubles have the line `line`.
    """
    for text in error.message.removeprefix("configuration: ").splitlines():
        before, _, after = text.strip().partition(f"entities.{name}")
        if not before:
            _, _, reason = after.partition(": ")
            reason, _, hint = reason.partition("; ")
            yield stop("ENTITY", line, reason or text, hint or error.hint or f"correct [entities.{name}]")
