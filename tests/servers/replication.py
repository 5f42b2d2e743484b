"""Makes a MySQL or MariaDB server follow another one, with the SQL that its version understands."""

from pymysql.cursors import DictCursor

from changelog.connectors.servers.mysql import MysqlServer
from tests.servers.mysql import version_of

_NEW_WORDS = (8, 4)
"""From this version on, MySQL does not accept the statements with the words MASTER and SLAVE. MySQL 8.0.15 accepts only
statements with these words.
"""


def follow(replica: MysqlServer, primary: MysqlServer) -> None:
    """Makes `replica` fetch and execute the transactions of `primary` that it lacks."""
    members = [f"HOST = '{primary.host}'", f"PORT = {primary.port}", "USER = 'root'", "CONNECT_RETRY = 1", "SSL = 0"]
    if replica.flavour == "mariadb":
        _run(replica, "SET GLOBAL gtid_slave_pos = @@global.gtid_binlog_pos")
        members.append("USE_GTID = slave_pos")
    else:
        members.append("AUTO_POSITION = 1")
    change, prefix = ("REPLICATION SOURCE", "SOURCE") if _has_new_words(replica) else ("MASTER", "MASTER")
    options = ", ".join(f"{prefix}_{member}" for member in members)
    _run(replica, f"CHANGE {change} TO {options}", f"START {_replica(replica)}")


def stop_following(replica: MysqlServer) -> None:
    """Ends the replication that `follow` started."""
    _run(replica, f"STOP {_replica(replica)}", f"RESET {_replica(replica)} ALL")


def last_error(replica: MysqlServer) -> str:
    """Returns why a replica has stopped. The text is empty if the replica is only slow."""
    with replica.connect() as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute(f"SHOW {_replica(replica)} STATUS")
        [status] = cursor.fetchall()
    return str(status["Last_Error"])


def reset_log(server: MysqlServer) -> None:
    """Deletes the binary log and its GTIDs, as if the server had never logged anything."""
    _run(server, "RESET BINARY LOGS AND GTIDS" if _has_new_words(server) else "RESET MASTER")


def _replica(server: MysqlServer) -> str:
    return "REPLICA" if _has_new_words(server) else "SLAVE"


def _has_new_words(server: MysqlServer) -> bool:
    return server.flavour == "mysql" and version_of(server) >= _NEW_WORDS


def _run(server: MysqlServer, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
