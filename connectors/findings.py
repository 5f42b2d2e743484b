"""The findings of `changelog check`: one for each precondition of the source and of the sink."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of checking one precondition.

    `hint` says what a person can do about it. `fix` holds SQL statements that do it without losing anything; it is
    empty if no such statements are known.
    """

    name: str
    status: Status
    message: str
    hint: str | None = None
    fix: tuple[str, ...] = ()


def ok(name: str, message: str, *, fix: tuple[str, ...] = ()) -> Finding:
    """Returns a finding that the precondition holds, or will hold once the service starts."""
    return Finding(name=name, status="ok", message=message, fix=fix)


def warn(name: str, message: str, hint: str | None = None) -> Finding:
    """Returns a finding that does not prevent the service from running, but that a person should look at."""
    return Finding(name=name, status="warn", message=message, hint=hint)


def fail(name: str, message: str, hint: str) -> Finding:
    """Returns a finding that prevents a start: the changelog would not be exact, or the service would do harm."""
    return Finding(name=name, status="fail", message=message, hint=hint)
