"""What a check finds: of a source or of a sink."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One precondition: `message` says what is so, `hint` what to do, `fix` the SQL that does it safely, if any."""

    name: str
    status: Status
    message: str
    hint: str | None = None
    fix: tuple[str, ...] = ()


def ok(name: str, message: str, *, fix: tuple[str, ...] = ()) -> Finding:
    """All is well, or will be once the service starts."""
    return Finding(name=name, status="ok", message=message, fix=fix)


def warn(name: str, message: str, hint: str | None = None) -> Finding:
    """The service runs, and somebody should know."""
    return Finding(name=name, status="warn", message=message, hint=hint)


def fail(name: str, message: str, hint: str) -> Finding:
    """The service would not be exact, or would harm: it does not start."""
    return Finding(name=name, status="fail", message=message, hint=hint)
