"""Makes `time.sleep` tolerate an error under libfaketime.

On a busy machine, the time at which a sleep should end may pass before the sleep begins. libfaketime then reports an
invalid argument.
"""

import errno
import time
from typing import SupportsIndex

_sleep = time.sleep


def _lenient(seconds: float | SupportsIndex) -> None:
    try:
        _sleep(seconds)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


time.sleep = _lenient
