"""Makes `time.sleep` tolerate an error under libfaketime.

On a busy machine, the end of a sleep may pass before the sleep begins. libfaketime reports such a sleep as invalid.
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
