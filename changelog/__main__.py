"""`python -m changelog` is the command `changelog`."""

import sys

from changelog.connectors.cli import main

sys.exit(main())
