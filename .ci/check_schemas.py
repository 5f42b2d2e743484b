"""Compares the schemas in this repository with those on its main branch.

Run this script from the root, as `python .ci/check_schemas.py`. If the checkout has no history, there is no main branch
to compare with: the script says so, and exits with 0.
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
