"""Defines what `changelog check` finds out about each precondition of the source and of the sink."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from changelog.envelope.errors import ChangelogError, Kind

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of checking one precondition.

    If the precondition does not hold, `hint` says what a person can do. `fix` has SQL statements that make it hold and
    lose no data; it is empty if no such statements are known.
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


def refuse(results: Sequence[Finding]) -> None:
    """Raises ChangelogError (PRECONDITION) for the first finding that is a failure, if there is one.

    The message says how many more failures there are.
    """
    failures = [finding for finding in results if finding.status == "fail"]
    if failures:
        others = len(failures) - 1
        more = f" (and {others} more problem{'s' if others > 1 else ''}: see `changelog check`)" if others else ""
        first_failure = failures[0]
        raise ChangelogError(
            Kind.PRECONDITION, f"{first_failure.name}: {first_failure.message}{more}", hint=first_failure.hint
        )
