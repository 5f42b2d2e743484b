"""Sleeps under libfaketime, which calls a sleep invalid whose end passed before it began, as on a busy machine."""

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
