"""A process that writes a file log and kills itself: `python -m tests.unit.sinks.doomed_writer PATH LAST POINT NTH`.

- The process continues from the log's checkpoint up to commit LAST. After each commit, it stores a checkpoint without
  rows.
- It kills itself when it passes the fail point POINT for the NTH time.
- It prints what the sink has stored: `commit N`, or `idle N` for the checkpoint without rows.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from changelog.connectors.sinks.files.sink import FileSink
from tests.unit.sinks.material import checkpoint, commit, store


def write(path: Path, last: int, reach: Callable[[str], None] = lambda point: None) -> None:
    """Continues from the log's checkpoint up to commit `last`."""
    sink = FileSink(path, reach=reach)
    recovered = sink.recover()
    last_stored = recovered.position.commit if recovered and recovered.position else 0
    for number in range(last_stored + 1, last + 1):
        store(sink, commit(number), checkpoint(number))
        print("commit", number, flush=True)  # noqa: T201 - the test reads these lines
        store(sink, [], checkpoint(number, through=10 * number + 5))
        print("idle", number, flush=True)  # noqa: T201
    sink.close()


def doom(point: str, nth: int) -> Callable[[str], None]:
    """Returns a function to use as `reach`. It kills this process when the process passes `point` for the nth time."""
    remaining = nth

    def reach(name: str) -> None:
        nonlocal remaining
        remaining -= name == point
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), doom(sys.argv[3], int(sys.argv[4])))
