"""Starts Spark's Python workers for tests, as `pyspark.daemon` does. This module saves time on two things that a worker
does for each task.

- A worker clears the caches of `importlib` for each task. After that, Python 3.11 would read the list of files in each
  zip archive on the path again. Spark's jar is on the path, and reading its list of 5,000 names takes 0.1 s. No archive
  changes during the tests, so this module keeps the lists.
- Each task ends with a garbage collection, which visits the objects of all imported modules. This module excludes these
  objects from the collections.

Most tasks of tests read only a few rows, so these two things took 95 % of the workers' CPU time.
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
    """Does nothing, so the list of files stays as it was read when the archive was first searched."""


if __name__ == "__main__":
    zipimporter.invalidate_caches = _keep  # type: ignore[assignment,method-assign]
    daemon.worker = _run_task_and_freeze
    daemon.manager()  # type: ignore[no-untyped-call]
