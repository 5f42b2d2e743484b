"""Runs the command `changelog` if it is started as `python -m changelog`."""

import sys

from changelog.connectors.cli import entry_point

sys.exit(entry_point())
