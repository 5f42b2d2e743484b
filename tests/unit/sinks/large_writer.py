"""A process that stores a large row beside a small one: `python -m tests.unit.sinks.large_writer PATH MIB`.

Prints the peak of resident memory over what it was before, in MiB: of a first commit, its rows included, and of a
second one, once the log was verified as each start does it.
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
    """Writes them; what the text itself takes is there before."""
    sink = FileSink(path)
    sink.recover()
    store(sink, commit(1), checkpoint(1))  # what Arrow needs once
    text = f'{{"n":"{random.Random(1).randbytes(mib << 19).hex()}"}}'
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib(os.getpid())
    for number in (2, 3):
        rows = [batch([row(Position(1, number, 0))]), batch([row(Position(1, number, 2), current=text)])]
        pa.default_memory_pool().release_unused()  # what it took to make them is not the sink's
        Path("/proc/self/clear_refs").write_text("5")
        store(sink, rows, checkpoint(number))
        print(peak_mib(os.getpid()) - before, flush=True)  # noqa: T201 - this is its protocol
        del rows
        sink.recover()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
