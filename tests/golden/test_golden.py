"""Runs the golden files. A golden file is an SQL script in which each statement is followed by the messages that it
must cause.

A file runs on every supported version of PostgreSQL, except those that are older than its setting `server`. The files
in PORTABLE also run on MySQL and MariaDB.
"""

import re
from contextlib import closing
from pathlib import Path

import pytest

from changelog.connectors.servers.mysql import MysqlServer
from tests.golden.on_mysql import GoldenMysql
from tests.golden.on_postgres import GoldenPostgres
from tests.golden.run import run_golden
from tests.golden.script import Script, parse, plain, render
from tests.servers import VERSIONS, fresh_database, server_name

FILES = sorted(Path(__file__).parent.glob("*.sql"))
PORTABLE = [file for file in FILES if parse(file.read_text()).config.get("mysql", False)]
"""The files whose SQL means the same on PostgreSQL, MySQL and MariaDB."""


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("version", VERSIONS)
def test_golden(file: Path, version: int, request: pytest.FixtureRequest) -> None:
    script = parse(file.read_text())
    if script.config.get("server", 0) > version:
        pytest.skip(f"needs PostgreSQL {script.config['server']}")
    with (
        fresh_database(request.getfixturevalue(server_name(version))) as dsn,
        closing(GoldenPostgres(dsn)) as database,
    ):
        messages_of_steps = run_golden(script, database)
    assert [[plain(message) for message in messages] for messages in messages_of_steps] == _expected(script)


@pytest.mark.parametrize("file", PORTABLE, ids=lambda file: file.stem)
def test_golden_on_mysql(file: Path, mysql_server: MysqlServer, mysql_database: str) -> None:
    """The messages are the same as on PostgreSQL. Only the ordinals may differ, because they count the records of the
    server's log.
    """
    script = parse(file.read_text())
    with closing(GoldenMysql(mysql_server, mysql_database)) as database:
        messages_of_steps = run_golden(script, database)
    assert [[_without_ordinal(plain(message)) for message in messages] for messages in messages_of_steps] == [
        [_without_ordinal(message) for message in messages] for messages in _expected(script)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_file_that_is_written_again_has_the_same_messages(file: Path) -> None:
    script = parse(file.read_text())
    assert [[plain(text) for text in messages] for messages in _expected(parse(render(script, _expected(script))))] == (
        _expected(script)
    )


def _without_ordinal(message: str) -> str:
    return re.sub(r', "ordinal": \d+', "", message, count=1)


def _expected(script: Script) -> list[list[str]]:
    return [list(step.expected) for step in script.steps]
