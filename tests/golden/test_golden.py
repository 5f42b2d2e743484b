"""What the changelog says of each statement in the golden files, on every supported version of the server."""

from pathlib import Path

import pytest

from tests.golden.run import run_golden
from tests.golden.script import Script, parse, plain, render
from tests.servers import VERSIONS, fresh_database, server_name

FILES = sorted(Path(__file__).parent.glob("*.sql"))


@pytest.mark.usefixtures("starts_servers")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@pytest.mark.parametrize("version", VERSIONS)
def test_golden(file: Path, version: int, request: pytest.FixtureRequest) -> None:
    script = parse(file.read_text())
    if script.config.get("server", 0) > version:
        pytest.skip(f"needs PostgreSQL {script.config['server']}")
    with fresh_database(request.getfixturevalue(server_name(version))) as dsn:
        found = run_golden(script, dsn)
    assert [[plain(message) for message in messages] for messages in found] == _expected(script)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_golden_file_is_what_the_writer_writes(file: Path) -> None:
    script = parse(file.read_text())
    assert [[plain(each) for each in messages] for messages in _expected(parse(render(script, _expected(script))))] == (
        _expected(script)
    )


def _expected(script: Script) -> list[list[str]]:
    return [list(step.expected) for step in script.steps]
