"""What a sink stores with each commit, atomically with the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec

from envelope.errors import ChangelogError, Kind
from envelope.position import Position

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where and why a service stopped, as its error said (`envelope.errors`)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """How far a changelog reaches, and all that is needed to go on from there.

    `position` is that of the last published row, None before the first. `through_lsn` is the end
    of the last commit that is whole in the changelog, or the server's log end when idle. `partial`
    says that `position` stands inside a transaction. `windows` is the progress of table reads by
    entity, `settings` what shapes order or content, `decisions` the stops that an operator passed:
    position text to `skip`, `default` or `dead-letter`. `accepted` are the changes
    of columns that an operator let pass: entity to position text. `repairs` is what signals asked for and
    is not done yet. `source` and `sink` hold what each of the two wants to find unchanged when it is opened
    again; nobody else reads them, and a record without them proves nothing. `stop` is where the service
    stopped last, until it is past that.
    """

    position: Position | None
    through_lsn: int
    epoch: int
    system_identifier: str
    timeline: int
    partial: bool = False
    windows: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    decisions: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, str] = field(default_factory=dict)
    repairs: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    sink: Mapping[str, Any] = field(default_factory=dict)
    stop: Stop | None = None
    format: int = FORMAT

    def decision(self, position: Position) -> str | None:
        """What was accepted for a stop at `position`: a decision holds to the end of its transaction."""
        held = [
            accepted
            for accepted in map(Position.parse, self.decisions)
            if (accepted.epoch, accepted.commit) == (position.epoch, position.commit) and accepted <= position
        ]
        return self.decisions[str(max(held))] if held else None

    def stopping(self, met: Stop | None) -> "Checkpoint":
        """With the stop that was met, or the one from before while it is still ahead."""
        ahead = self.stop
        if ahead is not None and (self.epoch, self.through_lsn) > (ahead.position.epoch, ahead.position.commit):
            ahead = None
        return replace(self, stop=met or ahead)

    def to_json(self) -> bytes:
        """One JSON object; `through_lsn` as the server prints it."""
        return msgspec.json.encode(
            {
                "format": self.format,
                "position": None if self.position is None else str(self.position),
                "through_lsn": lsn_text(self.through_lsn),
                "epoch": self.epoch,
                "system_identifier": self.system_identifier,
                "timeline": self.timeline,
                "partial": self.partial,
                "windows": self.windows,
                "settings": self.settings,
                "decisions": self.decisions,
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
            return cls(
                position=None if value["position"] is None else Position.parse(value["position"]),
                through_lsn=parse_lsn(value["through_lsn"]),
                epoch=value["epoch"],
                system_identifier=value["system_identifier"],
                timeline=value["timeline"],
                partial=value["partial"],
                windows=value["windows"],
                settings=value["settings"],
                decisions=value["decisions"],
                accepted=value.get("accepted", {}),
                repairs=value.get("repairs", {}),
                source=value.get("source", {}),
                sink=value.get("sink", {}),
                stop=Stop.from_json(value["stop"]) if "stop" in value else None,
                format=value["format"],
            )
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise ChangelogError(Kind.MALFORMED, "the recovery record cannot be read") from error


def lsn_text(lsn: int) -> str:
    """A log sequence number as PostgreSQL prints it, `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The log sequence number that `text` spells; ValueError when it spells none."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a log sequence number")
    return int(high, 16) << 32 | int(low, 16)
