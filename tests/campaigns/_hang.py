"""Makes one SQL session of the service hang. The server's process for this session is stopped, but the kernel still
acknowledges packets.
"""

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator

import psycopg

TIMEOUTS = """
query_timeout_seconds = 2
read_timeout_seconds = 3
"""
"""Settings for `[source]`. These timeouts are shorter than a hang (`HANG_S`), so the service gives up waiting for an
answer before the hang ends.
"""

HANG_S = (4.0, 8.0)

_STARTED_S = 10.0

_SESSIONS = """
SELECT a.pid, a.backend_type FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.application_name = 'changelog' AND a.pid <> pg_backend_pid()
    AND (a.backend_type = 'client backend'
        OR a.pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s))
ORDER BY a.backend_start
"""


@contextlib.contextmanager
def hanging(dsn: str, slot: str, rng: random.Random) -> Iterator[str | None]:
    """Picks one session of the service that reads `slot`. Stops the server's process for this session until the `with`
    block ends.

    Yields the kind of the session, or None if the service has no session.
    """
    sessions = _read_sessions(dsn, slot)
    if not sessions:
        yield None
        return
    pid, kind = rng.choice(sessions)
    try:
        os.kill(pid, signal.SIGSTOP)
    except ProcessLookupError:
        yield None
        return
    try:
        yield str(kind)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _read_sessions(dsn: str, slot: str) -> list[tuple[int, str]]:
    """Returns the process id and the kind of each session of the service. If the service has no session, waits for up
    to `_STARTED_S` seconds, because the service may just have been started.
    """
    deadline = time.monotonic() + _STARTED_S
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not (sessions := connection.execute(_SESSIONS, [slot]).fetchall()) and time.monotonic() < deadline:
            time.sleep(0.1)
    return sessions
