"""Runs golden scripts on MySQL and MariaDB, if their SQL means the same there as on PostgreSQL.

The scripts are written in PostgreSQL's SQL. A provenance stamp is a note that says which service makes the changes of a
transaction. A statement that emits a stamp becomes an insert into the table `changelog_stamp`. A statement that sets
REPLICA IDENTITY is left out, because MySQL's log has complete rows without it.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS

from changelog.connectors.config import Config, MysqlConfig
from changelog.connectors.servers.mysql import MysqlServer
from changelog.connectors.sources import ChangeSource
from changelog.connectors.sources.mysql.database import MysqlDatabase, Settings
from changelog.connectors.sources.mysql.source import MysqlSource
from changelog.connectors.wiring import entities
from changelog.envelope.checkpoint import Checkpoint

STANDARD_SQL = "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,STRICT_ALL_TABLES'"
STAMPS = "CREATE TABLE changelog_stamp (id bigint PRIMARY KEY, content mediumtext CHARACTER SET utf8mb4 NOT NULL)"

_STAMP = re.compile(r"\bSELECT pg_logical_emit_message\(true, 'provenance',\s*(.*)\);\s*$", re.DOTALL)
_CONFIG = re.compile(r"^--# .*\n", re.MULTILINE)
"""Matches a line of a golden file's configuration. Such lines are removed before a statement is sent: they are comments
only on PostgreSQL, because MySQL requires a blank after the two dashes.
"""

_IDENTITY = re.compile(r"\bALTER TABLE \w+ REPLICA IDENTITY FULL;\s*$")


class GoldenMysql:
    """A fresh database of a server, and the session in which one script runs; see `tests.golden.run.GoldenDatabase`."""

    def __init__(self, server: MysqlServer, database: str) -> None:
        self.schema = database
        dsn = f"mysql://root@{server.host}:{server.port}/{database}"
        self.source: Mapping[str, Any] = {"kind": "mysql", "dsn": dsn}
        self._stamp_ids = itertools.count()
        self._session: Any = server.connect(database)
        for statement in (STANDARD_SQL, f"ALTER DATABASE {database} CHARACTER SET utf8mb4", STAMPS):
            self._session.query(statement)

    @property
    def in_transaction(self) -> bool:
        return bool(self._session.server_status & SERVER_STATUS_IN_TRANS)

    def execute(self, statement: str) -> None:
        if _IDENTITY.search(statement):
            return
        sql = _CONFIG.sub("", statement)
        insert = f"INSERT INTO changelog_stamp (id, content) VALUES ({next(self._stamp_ids)}, "
        self._session.query(_STAMP.sub(lambda match: f"{insert}{match[1]});", sql))

    def open(self, config: Config, recover: Callable[[], Checkpoint | None]) -> ChangeSource:
        settings = _settings(config)
        return MysqlSource(settings, entities.resolve(config, MysqlDatabase(settings).tables()), recover)

    def end_of_log(self) -> int:
        config = Config.model_validate({"name": "golden", "source": self.source, "sink": {"path": "unused"}})
        return int(MysqlDatabase(_settings(config)).status("").end, 16)

    def through(self, checkpoint: Checkpoint) -> int:
        return int(checkpoint.through, 16)

    def close(self) -> None:
        self._session.close()


def _settings(config: Config) -> Settings:
    assert isinstance(config.source, MysqlConfig)
    return Settings(name=config.name, dsn=config.source.dsn, hmac_key=config.hmac_key, workers=1)
