"""A process that writes a file log and kills itself: `python -m tests.unit.sinks.doomed_writer PATH LAST POINT NTH`.

Goes on from the log's checkpoint to commit LAST, each followed by an idle checkpoint, and dies without a word
at the NTH time that it passes POINT. Prints what was acknowledged: `commit N` or `idle N`.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from changelog.connectors.sinks.files.sink import FileSink
from tests.unit.sinks.material import checkpoint, commit, store


def write(path: Path, last: int, reach: Callable[[str], None] = lambda point: None) -> None:
    """Goes on from the log's checkpoint to commit `last`."""
    sink = FileSink(path, reach=reach)
    found = sink.recover()
    done = found.position.commit if found and found.position else 0
    for number in range(done + 1, last + 1):
        store(sink, commit(number), checkpoint(number))
        print("commit", number, flush=True)  # noqa: T201 - this is its protocol
        store(sink, [], checkpoint(number, through=10 * number + 5))
        print("idle", number, flush=True)  # noqa: T201
    sink.close()


def doom(point: str, nth: int) -> Callable[[str], None]:
    """Kills this process at the nth time that it passes `point`."""
    left = nth

    def reach(passed: str) -> None:
        nonlocal left
        left -= passed == point
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return reach


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), doom(sys.argv[3], int(sys.argv[4])))
