"""Compares this repository's schemas with those of its main branch.

Run it from the root, as `python .ci/check_schemas.py`. In a checkout without history, there is nothing to compare with,
so the check says this and passes.
"""

import sys
from pathlib import Path

from changelog.connectors import cli
from changelog.connectors.schema_files.git import Repository
from changelog.envelope.errors import ChangelogError


def main() -> int:
    """Returns the exit code of `changelog schemas check`, or 0 if there is nothing to compare with."""
    try:
        Repository(Path()).base()
    except ChangelogError as error:
        print(f"schemas: not compared: {error.message}")
        return 0
    return cli.main(["schemas", "check"])


if __name__ == "__main__":
    sys.exit(main())
