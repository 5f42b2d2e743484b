"""Who a session of the server is, in words: the one that is in the way has to be found and ended by a person."""

from dataclasses import dataclass
from typing import Final

from envelope.errors import ChangelogError, Kind

COLUMNS: Final = """
a.application_name, a.usename::text, host(a.client_addr),
to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
"""
"""What `Session` holds beside the process, of `pg_stat_activity AS a`. Only a member of the session's role, or of
`pg_read_all_stats`, sees the last two.
"""


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the server; what our role may not see is None. `since` is when it began, in UTC."""

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
        said = ", ".join(part for part in parts if part)
        return f"process {self.pid}" + (f" ({said})" if said else "")

    def in_use(self, slot: str) -> ChangelogError:
        """The error of whoever wants to read `slot` while this session does, or has claimed it."""
        return ChangelogError(
            Kind.IN_USE,
            f"replication slot {slot} is read by {self}",
            hint=f"stop that one first; if it is nobody's any more: SELECT pg_terminate_backend({self.pid})",
        )
