"""Contains the Spark jobs. They archive the changelog, derive deltas and views from it, and compare it with its source.

Drivers read the configuration through `connectors`. Code that runs on executors imports only `envelope`, `schemas` and,
from each source, the modules that scan tables; the import rules in pyproject.toml list these modules.
"""
