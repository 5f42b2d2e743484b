"""Reads the changelog into Spark: `from changelog.spark_jobs.reading import Archive, Files, Kafka, read_changelog`.

Spark's workers import single modules of this folder, and Python then runs this file, too. To keep this fast, this file
imports the names in `__all__` only when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from changelog.spark_jobs.reading.read import read_changelog, stream_changelog
    from changelog.spark_jobs.reading.where import Archive, Files, Kafka

__all__ = ["Archive", "Files", "Kafka", "read_changelog", "stream_changelog"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Imports one of the names in `__all__` (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module("changelog.spark_jobs.reading.read"), name)
