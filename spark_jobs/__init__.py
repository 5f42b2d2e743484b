"""Jobs on Spark over the changelog: read it anywhere, archive it, derive deltas and views, detect drift.

Drivers read the configuration through `connectors`. Code that runs on executors imports only `envelope`, `schemas` and
one scan of each source; the import rules in pyproject.toml list its modules.
"""
