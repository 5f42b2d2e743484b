"""Contains the Spark jobs. They archive the changelog, derive deltas and views from it, and compare it with its source.

Spark drivers read the configuration through `connectors`. Code that runs on executors imports only `envelope`,
`schemas` and those modules of the sources that scan tables. The import rules in pyproject.toml list these modules.
"""
