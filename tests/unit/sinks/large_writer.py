"""A process that stores a large row together with a small one: `python -m tests.unit.sinks.large_writer PATH MIB`.

The process stores two such pairs, each in its own commit, and verifies the log after each commit, as a service does
when it starts. For each commit, it prints the peak of its resident memory, in MiB. The memory for the rows is included,
but the memory that the process had before the first pair is subtracted.
"""

import os
import random
import sys
from pathlib import Path

import pyarrow as pa

from bench.measure.processes import peak_mib
from changelog.connectors.sinks.files.sink import FileSink
from changelog.envelope.position import Position
from tests.unit.sinks.material import batch, checkpoint, commit, row, store


def main(path: Path, mib: int) -> None:
    """Stores the rows. The large text is made before the first measurement, so its own memory does not count."""
    sink = FileSink(path)
    sink.recover()
    store(sink, commit(1), checkpoint(1))  # so that Arrow allocates its own memory before we measure
    text = f'{{"n":"{random.Random(1).randbytes(mib << 19).hex()}"}}'
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib(os.getpid())
    for number in (2, 3):
        rows = [batch([row(Position(1, number, 0))]), batch([row(Position(1, number, 2), current=text)])]
        pa.default_memory_pool().release_unused()  # memory that was needed to make the rows is not the sink's
        Path("/proc/self/clear_refs").write_text("5")
        store(sink, rows, checkpoint(number))
        print(peak_mib(os.getpid()) - before, flush=True)  # noqa: T201 - the test reads these lines
        del rows
        sink.recover()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
