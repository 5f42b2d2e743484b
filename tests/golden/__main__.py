"""`python -m tests.golden NAME ...` rewrites golden files: it runs their statements on the newest PostgreSQL, and
writes the messages of each statement under the statement. Without a NAME, it rewrites all files.

Before you commit the files, read what has changed in them.
"""

import sys
from contextlib import closing
from pathlib import Path

from changelog.connectors.servers.postgres import temporary_server
from tests.golden.on_postgres import GoldenPostgres
from tests.golden.run import run_golden
from tests.golden.script import parse, render
from tests.servers import SETTINGS, fresh_database


def main(names: list[str]) -> None:
    """Rewrites the files of these names."""
    with temporary_server(settings=SETTINGS) as server:
        for name in names:
            file = Path(__file__).with_name(f"{name}.sql")
            script = parse(file.read_text())
            with fresh_database(server) as dsn, closing(GoldenPostgres(dsn)) as database:
                file.write_text(render(script, run_golden(script, database)))


main(sys.argv[1:] or [file.stem for file in sorted(Path(__file__).parent.glob("*.sql"))])
