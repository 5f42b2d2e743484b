"""Starts Spark's Python workers for tests, as `pyspark.daemon` does, but makes two things cheap that a worker does for
each task.

Python 3.11 reads the directory of a zip archive again whenever `importlib` forgets what it knows about folders. Spark's
jar, with 5,000 names, is on the workers' path. Each task forgets, so it would read these names for 0.1 s, although no
archive changes. And each task ends with a garbage collection, which would visit the objects of all imported modules.
Most tasks of tests read a few rows, so these two things took 19 of 20 parts of the workers' CPU time.
"""

import gc
import socket
import sys
from zipimport import zipimporter

from pyspark import daemon

_run_task = daemon.worker


def _run_task_and_freeze(connection: socket.socket, authenticated: bool) -> int:
    """Runs a task. If it has imported modules, excludes their objects from later garbage collections."""
    modules = len(sys.modules)
    code: int = _run_task(connection, authenticated)  # type: ignore[no-untyped-call]
    if len(sys.modules) > modules:
        gc.collect()
        gc.freeze()
    return code


def _keep(archive: zipimporter) -> None:
    """Keeps the names that were read when the archive was first searched."""


if __name__ == "__main__":
    zipimporter.invalidate_caches = _keep  # type: ignore[assignment,method-assign]
    daemon.worker = _run_task_and_freeze
    daemon.manager()  # type: ignore[no-untyped-call]
