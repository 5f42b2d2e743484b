"""The findings of a check, of a source or of a sink."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result for one precondition: the `message`, a `hint` what to do, and SQL in `fix` that does it safely."""

    name: str
    status: Status
    message: str
    hint: str | None = None
    fix: tuple[str, ...] = ()


def ok(name: str, message: str, *, fix: tuple[str, ...] = ()) -> Finding:
    """The precondition holds, or will hold once the service starts."""
    return Finding(name=name, status="ok", message=message, fix=fix)


def warn(name: str, message: str, hint: str | None = None) -> Finding:
    """The service runs, but somebody should look at this."""
    return Finding(name=name, status="warn", message=message, hint=hint)


def fail(name: str, message: str, hint: str) -> Finding:
    """The service does not start, because it would not be exact or would do harm."""
    return Finding(name=name, status="fail", message=message, hint=hint)
