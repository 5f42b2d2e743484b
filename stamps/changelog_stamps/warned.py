"""Logs each kind of problem only once in a process. Otherwise, an application that makes wrong stamps would log a line
for every request.
"""

import logging
import threading

_log = logging.getLogger("changelog_stamps")
_lock = threading.Lock()
_problems: set[str] = set()


def warn(problem: str) -> None:
    """Logs a problem, unless the same text was logged before. `problem` must not contain values of the application:
    each value would make another text, and each text would be logged.
    """
    with _lock:
        if problem in _problems:
            return
        _problems.add(problem)
    _log.warning(problem)
