"""Stands before pandas on a service's path: to pyarrow, which imports it wherever it is, it is not installed."""

raise ImportError("the service is installed without pandas")
