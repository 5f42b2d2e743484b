"""Compares this repository's schemas with those of its main branch; passes, and says so, where git knows none.

`python .ci/check_schemas.py`, from the root: a checkout without its history has nothing to compare with.
"""

import sys
from pathlib import Path

from changelog.connectors import cli
from changelog.connectors.schema_files.git import Repository
from changelog.envelope.errors import ChangelogError


def main() -> int:
    """The exit code of `changelog schemas check`, or 0."""
    try:
        Repository(Path()).base()
    except ChangelogError as error:
        print(f"schemas: not compared: {error.message}")
        return 0
    return cli.main(["schemas", "check"])


if __name__ == "__main__":
    sys.exit(main())
