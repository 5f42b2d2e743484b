"""Makes sure that only one service reads the log for a changelog.

The service takes a lock, which the server releases when the service's session ends.
"""

import hashlib
from dataclasses import dataclass

from changelog.connectors.sources.mysql.admin.catalog import Query
from changelog.envelope.errors import ChangelogError, Kind

_NAME_MAX = 64
_PREFIX = "changelog:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The session that has the lock.

    `id` is the number that the server gave the session's connection. `user` and `host` are empty if the server does not
    list the session.
    """

    id: int
    user: str
    host: str

    def in_use(self, name: str) -> ChangelogError:
        """Returns the error for another service that needs the lock of the changelog `name`."""
        who = f" ({self.user} from {self.host})" if self.user else ""
        return ChangelogError(
            Kind.IN_USE,
            f"connection {self.id}{who} reads the binary log for changelog {name}",
            hint=f"stop the service that holds this connection; if there is none, run KILL {self.id} on the server",
        )


def claim(query: Query, name: str, *, patience_s: float, own: set[int]) -> None:
    """Takes the lock of the changelog `name` for the session of `query`, and waits for it up to `patience_s` seconds.

    A lost session of this process can still have the lock, because the server needs a moment to notice the loss. `own`
    has the ids of all connections that this process has had. If the wait ends without the lock, raises ChangelogError:
    IN_USE if a session of another process has it; CONNECTION if a lost session of this process still has it, or if it
    became free just after the wait.
    """
    [(is_ours,)] = query("SELECT GET_LOCK(%s, %s)", (_lock(name), patience_s))
    if is_ours == 1:
        return
    present = holder(query, name)
    if present is None or present.id in own:
        raise ChangelogError(
            Kind.CONNECTION, f"a lost session of this service still reads the binary log for changelog {name}"
        )
    raise present.in_use(name)


def holder(query: Query, name: str) -> Holder | None:
    """Returns the session that has the lock of the changelog `name`; None if no session has the lock."""
    [(id_,)] = query("SELECT IS_USED_LOCK(%s)", (_lock(name),))
    if id_ is None:
        return None
    sessions = query("SELECT USER, HOST FROM information_schema.PROCESSLIST WHERE ID = %s", (id_,))
    user, host = sessions[0] if sessions else ("", "")
    return Holder(id=int(id_), user=user, host=host)


def _lock(name: str) -> str:
    """Returns the name of the lock. The server allows 64 characters."""
    lock = _PREFIX + name
    return lock if len(lock) <= _NAME_MAX else _PREFIX + hashlib.sha256(name.encode()).hexdigest()[:40]
