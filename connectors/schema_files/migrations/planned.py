"""What is said of a migration: of each entity, what becomes of it, and what stops the service or breaks a reader."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from changelog.connectors.sources.migrations import Alteration
from changelog.envelope.errors import ChangelogError
from changelog.schemas import avro

THE_SERVICE = "the service"
"""Whom a trouble breaks, when it is not readers."""

SEE_CHECK = "see `changelog check`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why the service would stop, or a reader break; `rule` names it, `line` is the statement's that does it."""

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
    """What becomes of one entity; of one that is new, `line` makes its table.

    `stops` says that the service would stop. `reads_again` are the columns for whose sake it would read the table
    again, `asks` that it waits to be told to; `unseen` are changes of stored values that it cannot see.
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
        """Whether there is anything to say of it."""
        return bool(self.is_new or self.alterations or self.troubles or self.notes or self.reads_again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """What is known of each entity beside its table: the schema in its file, and the versions in the changelog."""

    files: Mapping[str, avro.Schema]
    versions: Mapping[str, Sequence[tuple[str, avro.Schema]]]


def stop(rule: str, line: int, text: str, hint: str) -> Trouble:
    """A trouble that the service stops for."""
    return Trouble(rule=rule, line=line, path="/", breaks=THE_SERVICE, against="", text=text, hint=hint)


def reasons(name: str, error: ChangelogError, line: int) -> Iterator[Trouble]:
    """Why the configuration no longer fits the entity `name`, without where in it."""
    for text in error.message.removeprefix("configuration: ").splitlines():
        place, _, why = text.strip().partition(f"entities.{name}")
        if not place:
            _, _, reason = why.partition(": ")
            reason, _, hint = reason.partition("; ")
            yield stop("ENTITY", line, reason or text, hint or error.hint or f"correct [entities.{name}]")
