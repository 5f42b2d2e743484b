"""Runs the command `changelog` if it is started as `python -m changelog`."""

import sys

from changelog.connectors.cli import main

sys.exit(main())
