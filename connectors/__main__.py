"""`python -m connectors` is `changelog`."""

import sys

from connectors.cli import main

sys.exit(main())
