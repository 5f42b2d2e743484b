"""Checks whether other roles can send signals to the service: requests, for example, to read a table again."""

from changelog.connectors.findings import Finding, ok, warn
from changelog.connectors.sources.postgres.session.connection import Connection, translated

_OTHERS = """
SELECT count(*) FROM pg_roles
WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
    AND has_database_privilege(oid, current_database(), 'CONNECT')
"""


def finding(connection: Connection, *, signed: bool) -> Finding:
    """Returns a finding on whether other roles could send signals that the service obeys.

    Any role may send a signal. If the configuration has no secret (`signed` is false), the service also obeys signals
    that are not signed. Superusers are not counted: they can do anything.
    """
    if signed:
        return ok("signals", "the service obeys only signed signals")
    with translated("counting roles"):
        row = connection.execute(_OTHERS).fetchone()
    assert row is not None
    if not row[0]:
        return ok("signals", "no other role may log in and send signals")
    return warn(
        "signals",
        f"{row[0]} other roles may log in to the database and send signals that the service obeys",
        'set [signals] secret = "env:NAME"',
    )
