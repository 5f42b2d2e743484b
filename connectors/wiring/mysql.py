"""Opens a MySQL or MariaDB database.

This module needs an optional package, pymysql. So `wiring.sources` imports this module only for such a database.
"""

from collections.abc import Callable

from changelog.connectors.config import Config, MysqlConfig
from changelog.connectors.sources import Database
from changelog.connectors.sources.candidates import Candidate
from changelog.connectors.sources.mysql.candidate import MysqlCandidate
from changelog.connectors.sources.mysql.database import MysqlDatabase, Settings


def database(config: Config, source: MysqlConfig, stopping: Callable[[], bool]) -> Database:
    """Returns the database that `source`, the section [source] of `config`, names. See `wiring.sources.database`."""
    return MysqlDatabase(
        Settings(
            name=config.name,
            dsn=source.dsn,
            hmac_key=config.hmac_key,
            signals_secret=config.signals_secret,
            codec=config.codec,
            keeps_state=config.state is not None,
            workers=source.snapshot_workers,
            chunk_rows=source.snapshot_rows,
            replica_id=source.server_id,
            fence_folder=source.fence_folder,
            answer_s=source.query_timeout_seconds,
            read_s=source.read_timeout_seconds,
            stopping=stopping,
        )
    )


def candidate(dsn: str) -> Candidate:
    """Returns an object through which `changelog init` reads this database. See `wiring.sources.candidate`."""
    return MysqlCandidate(dsn)
