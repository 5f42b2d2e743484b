"""Logs each kind of problem only once in a process, because an application that writes a wrong stamp does so in every
request.
"""

import logging
import threading

_log = logging.getLogger("changelog_stamps")
_lock = threading.Lock()
_problems: set[str] = set()


def warn(problem: str) -> None:
    """Logs a problem, unless it was logged before. `problem` holds no values of the application."""
    with _lock:
        if problem in _problems:
            return
        _problems.add(problem)
    _log.warning(problem)
