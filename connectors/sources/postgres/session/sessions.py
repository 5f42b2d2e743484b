"""Describes a session of the server, so that a person can find it and end it."""

from dataclasses import dataclass
from typing import Final

from changelog.envelope.errors import ChangelogError, Kind

COLUMNS: Final = """
a.application_name, a.usename::text, host(a.client_addr),
to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
"""
"""The SQL for the fields of `ServerSession` after `pid`, from `pg_stat_activity AS a`. The last two are null unless our
role is a member of the session's role or of `pg_read_all_stats`.
"""


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A session of the server; fields that our role may not see are None. `since` is its start time in UTC."""

    pid: int
    application: str | None
    role: str | None
    address: str | None
    since: str | None

    def __str__(self) -> str:
        parts = (
            self.application,
            self.role and f"role {self.role}",
            self.address and f"from {self.address}",
            self.since and f"since {self.since}",
        )
        details = ", ".join(part for part in parts if part)
        return f"process {self.pid}" + (f" ({details})" if details else "")

    def in_use(self, slot: str) -> ChangelogError:
        """Returns the error to raise if this session already reads `slot` or has claimed it."""
        return ChangelogError(
            Kind.IN_USE,
            f"replication slot {slot} is read by {self}",
            hint="stop that process first, or, if nobody needs the process any more, end it with "
            f"SELECT pg_terminate_backend({self.pid})",
        )
