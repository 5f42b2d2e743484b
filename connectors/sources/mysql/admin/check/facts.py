"""Reads the server's settings that decide whether its binary log can be published."""

from collections.abc import Mapping
from dataclasses import dataclass

from changelog.connectors.sources.mysql.admin.catalog import Query
from changelog.connectors.sources.mysql.admin.server_log import xa_commits
from changelog.connectors.sources.mysql.session.flavour import Flavour, ServerVersion
from changelog.connectors.sources.mysql.session.names import quoted_account
from changelog.envelope.errors import ChangelogError, Kind

_VARIABLES = (
    "binlog_do_db", "binlog_expire_logs_seconds", "binlog_format", "binlog_ignore_db", "binlog_row_image",
    "binlog_row_metadata", "binlog_storage_engine", "enforce_gtid_consistency", "expire_logs_days", "gtid_mode",
    "log_bin", "log_replica_updates", "log_slave_updates",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Facts about the server, and about the user account of the present session.

    `settings` has the global variables in `_VARIABLES`, without those that the server lacks; values are in upper case.
    `is_replica` says whether the server replicates from another server; None if this is unknown, for example because
    the account has no right to query it. `privileges` are the account's global privileges, as the server names them.
    They are None if the session has a current role, because the server does not list the privileges of roles.
    `xa_commits` is the number of XA COMMITs since the server started.
    """

    version: ServerVersion
    settings: Mapping[str, str]
    is_replica: bool | None
    account: str
    privileges: frozenset[str] | None
    xa_commits: int = 0

    @property
    def flavour(self) -> Flavour:
        """The flavour of the server."""
        return self.version.flavour

    def setting(self, name: str) -> str:
        """Returns the value of a variable, in upper case; empty if the server has no such variable."""
        return self.settings.get(name, "")


def read(query: Query) -> ServerFacts:
    """Reads the present facts. Raises ChangelogError as `query` does."""
    [(version, account)] = query("SELECT VERSION(), CURRENT_USER()", ())
    names = ", ".join(["%s"] * len(_VARIABLES))
    variables = query(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})", _VARIABLES)
    return ServerFacts(
        version=ServerVersion.parse(version),
        settings={name: value.upper() for name, value in variables},
        is_replica=_is_replica(query, ServerVersion.parse(version).flavour),
        account=account,
        privileges=_privileges(query, account),
        xa_commits=xa_commits(query),
    )


def _is_replica(query: Query, flavour: Flavour) -> bool | None:
    statement = "SHOW ALL SLAVES STATUS" if flavour is Flavour.MARIADB else "SHOW REPLICA STATUS"
    try:
        return bool(query(statement, ()))
    except ChangelogError as error:
        if error.kind not in (Kind.ACCESS, Kind.USAGE):  # MySQL before 8.0.22 does not know the statement (USAGE)
            raise
        return None


def _privileges(query: Query, account: str) -> frozenset[str] | None:
    sql = "SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = %s"
    rows = query(sql, (quoted_account(account),))
    roles = query("SELECT CURRENT_ROLE()", ())[0][0]
    return None if roles not in (None, "NONE") else frozenset(name for (name,) in rows)
