"""Who else could send signals that the service obeys."""

from connectors.findings import Finding, ok, warn
from connectors.sources.postgres.session.connection import Connection, translated

_OTHERS = """
SELECT count(*) FROM pg_roles
WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user
    AND has_database_privilege(oid, current_database(), 'CONNECT')
"""


def finding(connection: Connection, *, signed: bool) -> Finding:
    """Whether other roles could make the service read tables: any role may send a signal, and unsigned ones are obeyed
    unless the configuration has a secret.
    """
    if signed:
        return ok("signals", "only signed ones are obeyed")
    with translated("counting roles"):
        row = connection.execute(_OTHERS).fetchone()
    assert row is not None
    if not row[0]:
        return ok("signals", "nobody else may log in who could send them")
    return warn(
        "signals",
        f"{row[0]} other roles may log in to the database, and send signals that the service obeys",
        'set [signals] secret = "env:NAME"',
    )
