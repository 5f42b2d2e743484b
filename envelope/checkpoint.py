"""What a sink stores with each commit, atomically with the rows.

Format 2 knows no database: what a source alone understands is in `source`. Format 1 was PostgreSQL's, with a log
sequence number, a system identifier and a timeline beside the rest; it is read as if it had been written today.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import msgspec

from changelog.envelope.errors import ChangelogError, Kind
from changelog.envelope.position import Position, commit_text

FORMAT: Final = 2

_THROUGH = re.compile(r"([0-9A-F]{16}).*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where and why a service stopped, as its error said (`changelog.envelope.errors`)."""

    position: Position
    message: str
    hint: str | None
    choices: tuple[str, ...] = ()
    altered: str | None = None

    @classmethod
    def of(cls, error: ChangelogError) -> "Stop | None":
        """What is kept of an error; None of one that no operator can pass."""
        if error.kind is not Kind.STOP or error.position is None:
            return None
        return cls(
            position=error.position,
            message=error.message,
            hint=error.hint,
            choices=error.choices,
            altered=error.altered,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` gave; KeyError, TypeError or ValueError for anything else."""
        return cls(
            position=Position.parse(value["position"]),
            message=value["message"],
            hint=value["hint"],
            choices=tuple(value["choices"]),
            altered=value["altered"],
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "position": str(self.position),
            "message": self.message,
            "hint": self.hint,
            "choices": self.choices,
            "altered": self.altered,
        }


@dataclass(frozen=True, slots=True)
class Decisions:
    """The stops that an operator passed: the position of each, and `skip`, `default` or `dead-letter`."""

    passed: Mapping[Position, str] = field(default_factory=dict)

    def at(self, position: Position) -> str | None:
        """What was decided for a stop at `position`: a decision holds to the end of its transaction."""
        before = [
            decided
            for decided in self.passed
            if (decided.epoch, decided.commit) == (position.epoch, position.commit) and decided <= position
        ]
        return self.passed[max(before)] if before else None

    def accept(self, position: Position, decision: str) -> "Decisions":
        """With the decision for one more stop."""
        return Decisions({**self.passed, position: decision})

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Self:
        """What `to_json` gave; ValueError where a name is no position."""
        return cls({Position.parse(text): decision for text, decision in value.items()})

    def to_json(self) -> dict[str, str]:
        """Each position's text, and the decision."""
        return {str(position): decision for position, decision in self.passed.items()}


NO_DECISIONS: Final = Decisions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a changelog reaches, and all that is needed to go on from there.

    `position` is that of the last published row, None before the first. `through` says up to where the source's log is
    whole in the changelog: every transaction of `epoch` that was committed before it is stored, or had nothing to
    publish. It is a text of the source's own that compares as text, and it begins with a commit as positions write it
    (`changelog.envelope.position.commit_text`), so that it can be compared with them without asking the source.

    `partial` says that `position` stands inside a transaction. `windows` is the progress of table reads by entity,
    `settings` what shapes order or content, `decisions` the stops that an operator passed, `accepted` the changes of
    columns that an operator let pass: entity to position text. `repairs` is what signals asked for and is not done
    yet. `source` and `sink` hold what each of the two wants to find unchanged when it is opened again; nobody else
    reads them, and a record without them proves nothing. `stop` is where the service stopped last, until it is past
    that.
    """

    position: Position | None
    through: str
    epoch: int
    partial: bool = False
    windows: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    decisions: Decisions = NO_DECISIONS
    accepted: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    stop: Stop | None = None

    @property
    def complete_before(self) -> Position:
        """`through` as a position: nothing is missing before it."""
        return Position(self.epoch, _commit(self.through), 0)

    def stopping(self, met: Stop | None) -> "Checkpoint":
        """With the stop that was met, or the one from before while it is still ahead."""
        ahead = self.stop
        if ahead is not None and self.complete_before > replace(ahead.position, ordinal=0):
            ahead = None
        return replace(self, stop=met or ahead)

    def to_json(self) -> bytes:
        """One JSON object, of the newest format."""
        return msgspec.json.encode(
            {
                "format": FORMAT,
                "position": None if self.position is None else str(self.position),
                "through": self.through,
                "epoch": self.epoch,
                "partial": self.partial,
                "windows": self.windows,
                "settings": self.settings,
                "decisions": self.decisions.to_json(),
                "accepted": self.accepted,
                **{name: value for name in ("repairs", "source", "sink") if (value := getattr(self, name))},
                **({} if self.stop is None else {"stop": self.stop.to_json()}),
            }
        )

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """The record that `to_json` wrote, of this format or an older one."""
        try:
            value = msgspec.json.decode(text)
            if value["format"] > FORMAT:
                raise ChangelogError(
                    Kind.PRECONDITION,
                    f"the changelog's recovery record has format {value['format']}; this program knows {FORMAT}",
                    hint="run the newer version that wrote it",
                )
            value = _of_format_1(value) if value["format"] == 1 else value
            _commit(value["through"])
            return cls(
                position=None if value["position"] is None else Position.parse(value["position"]),
                through=value["through"],
                epoch=value["epoch"],
                partial=value["partial"],
                windows=value["windows"],
                settings=value["settings"],
                decisions=Decisions.from_json(value["decisions"]),
                accepted=value.get("accepted", {}),
                repairs=value.get("repairs", {}),
                source=value.get("source", {}),
                sink=value.get("sink", {}),
                stop=Stop.from_json(value["stop"]) if "stop" in value else None,
            )
        except (msgspec.DecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the recovery record cannot be read") from error


def _of_format_1(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same record with the members of format 2: what was PostgreSQL's moves into `source`."""
    high, _, low = value["through_lsn"].partition("/")
    cluster = {"system_identifier": value["system_identifier"], "timeline": value["timeline"]}
    return {
        **value,
        "through": commit_text(int(high, 16) << 32 | int(low, 16)),
        "source": {**cluster, **value.get("source", {})},
    }


def _commit(through: str) -> int:
    """The commit that `through` begins with; ValueError where it begins with none."""
    match = _THROUGH.fullmatch(through)
    if match is None:
        raise ValueError(f"{through!r} does not begin with a commit")
    return int(match[1], 16)
