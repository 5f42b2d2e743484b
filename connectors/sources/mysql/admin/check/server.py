"""Checks the server's version, its settings, and the rights of the account with which the service connects."""

from collections.abc import Iterator, Mapping

from changelog.connectors.findings import Finding, fail, ok, warn
from changelog.connectors.sources.mysql.admin.check.facts import ServerFacts
from changelog.connectors.sources.mysql.session.flavour import Flavour
from changelog.connectors.sources.mysql.session.names import quoted_account

OLDEST: Mapping[Flavour, tuple[int, int, int]] = {Flavour.MYSQL: (8, 0, 1), Flavour.MARIADB: (10, 5, 0)}
"""The first versions whose binary log can name the columns of tables (`binlog_row_metadata`)."""

NEWEST: Mapping[Flavour, int] = {Flavour.MYSQL: 9, Flavour.MARIADB: 11}
"""The newest major versions that the source is tested with."""

RETENTION_S = 3 * 86_400
"""How long the server should keep its log, so that a service that was stopped over a weekend can continue."""

_IMAGES = {Flavour.MYSQL: ("FULL",), Flavour.MARIADB: ("FULL", "FULL_NODUP")}
_PRIVILEGES: Mapping[Flavour, tuple[str, ...]] = {
    Flavour.MYSQL: ("REPLICATION SLAVE", "REPLICATION CLIENT"),
    Flavour.MARIADB: ("REPLICATION SLAVE", "BINLOG MONITOR"),
}
_GTID_STEPS = (
    "SET PERSIST enforce_gtid_consistency = ON; SET PERSIST gtid_mode = OFF_PERMISSIVE; "
    "SET PERSIST gtid_mode = ON_PERMISSIVE; wait until ongoing_anonymous_transaction_count is 0; "
    "SET PERSIST gtid_mode = ON"
)


def findings(facts: ServerFacts, *, keeps_state: bool = False) -> Iterator[Finding]:
    """Yields all findings on the server and on the account. `keeps_state` means the same as in `Settings`."""
    yield _version(facts)
    yield from _log(facts)
    yield from _settings(facts, keeps_state=keeps_state)
    yield _gtids(facts)
    yield from _replica(facts)
    yield _retention(facts)
    yield _rights(facts)


def _version(facts: ServerFacts) -> Finding:
    version = facts.version
    oldest = OLDEST[version.flavour]
    if version.numbers < oldest:
        return fail("version", f"{version} is too old", f"upgrade to {'.'.join(map(str, oldest))} or later")
    if version.numbers[0] > NEWEST[version.flavour]:
        newest = f"{version.flavour} {NEWEST[version.flavour]}"
        return warn("version", f"{version} is newer than the latest version that we test with ({newest})")
    return ok("version", str(version))


def _log(facts: ServerFacts) -> Iterator[Finding]:
    if facts.setting("log_bin") != "ON":
        yield fail(
            "log_bin",
            "the server writes no binary log",
            "set log_bin in the server's configuration file, and restart the server",
        )
    if facts.setting("binlog_storage_engine"):
        yield fail(
            "binlog_storage_engine",
            "the binary log is stored in InnoDB, which the source cannot read",
            "remove binlog_storage_engine from the server's configuration file, and restart the server",
        )
    for name in ("binlog_do_db", "binlog_ignore_db"):
        if facts.setting(name):
            yield fail(
                name,
                f"the binary log leaves out changes of some databases ({name})",
                f"remove {name} from the server's configuration file, and restart the server",
            )


def _settings(facts: ServerFacts, *, keeps_state: bool) -> Iterator[Finding]:
    # MariaDB's NOBLOB cannot be used: in the log of a REPLACE, a value that became null looks as if it had not changed.
    images = _IMAGES[facts.flavour]
    if keeps_state and facts.flavour is Flavour.MYSQL:
        images = (*images, "NOBLOB")
    yield _must_be(facts, "binlog_format", ("ROW",), "sessions that are open now keep the old value")
    yield _must_be(facts, "binlog_row_image", images, "sessions that are open now keep the old value")
    yield _must_be(facts, "binlog_row_metadata", ("FULL",), "each session uses it from its next statement on")


def _must_be(facts: ServerFacts, name: str, values: tuple[str, ...], note: str) -> Finding:
    value = facts.setting(name)
    if value in values:
        return ok(name, f"{name} is {value}")
    statement = f"SET {'GLOBAL' if facts.flavour is Flavour.MARIADB else 'PERSIST'} {name} = {values[0]}"
    restart = ", and set it in the configuration file, too" if facts.flavour is Flavour.MARIADB else ""
    return Finding(
        name=name,
        status="fail",
        message=f"{name} is {value or 'unknown'}, not {values[0]}",
        hint=f"{statement}{restart}; {note}",
        fix=(statement,),
    )


def _gtids(facts: ServerFacts) -> Finding:
    if facts.flavour is Flavour.MARIADB:
        return ok("gtid", "MariaDB gives every transaction a GTID")
    if facts.setting("gtid_mode") == "ON":
        return ok("gtid_mode", "gtid_mode is ON")
    return fail("gtid_mode", f"gtid_mode is {facts.setting('gtid_mode')}: transactions have no GTIDs", _GTID_STEPS)


def _replica(facts: ServerFacts) -> Iterator[Finding]:
    name = "log_replica_updates" if facts.setting("log_replica_updates") else "log_slave_updates"
    if facts.setting(name) != "OFF" or facts.is_replica is False:
        return
    message = f"{name} is OFF: a replica does not log what it replicates"
    hint = f"set {name} = ON in the server's configuration file, and restart the server"
    yield fail(name, message, hint) if facts.is_replica else warn(name, message, f"if the server is a replica, {hint}")


def _retention(facts: ServerFacts) -> Finding:
    seconds = float(facts.setting("binlog_expire_logs_seconds") or 0)
    seconds = seconds or 86_400 * float(facts.setting("expire_logs_days") or 0)
    if 0 < seconds < RETENTION_S:
        hours = f"{seconds / 3600:.3g}"
        return warn(
            "retention",
            f"the server deletes its binary log after {hours} {'hour' if hours == '1' else 'hours'}",
            f"SET GLOBAL binlog_expire_logs_seconds = {RETENTION_S}; a service that is stopped for longer than the "
            "server keeps its log loses changes",
        )
    duration = f"for {seconds / 86_400:.3g} days" if seconds else "until somebody purges it"
    return ok("retention", f"the server keeps its binary log {duration}")


def _rights(facts: ServerFacts) -> Finding:
    privileges = _PRIVILEGES[facts.flavour]
    if facts.flavour is Flavour.MYSQL and facts.version.logs_xa_commits_first and facts.xa_commits > 0:
        privileges = (*privileges, "XA_RECOVER_ADMIN")  # see snapshot/xa_commits.py
    if facts.privileges is None:
        return ok(
            "rights",
            f"the account {facts.account} has roles; the service checks at its start whether their rights suffice",
        )
    missing = [name for name in privileges if name not in facts.privileges]
    if not missing:
        return ok("rights", f"the account {facts.account} may read the binary log")
    statement = f"GRANT {', '.join(missing)} ON *.* TO {quoted_account(facts.account)}"
    return fail("rights", f"the account {facts.account} lacks {' and '.join(missing)}", statement)
