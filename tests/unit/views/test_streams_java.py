"""Tests how Java is started. Each test starts a process, because a process can have only one Java virtual machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from changelog.connectors.views.streams import java

PROGRAM = """
import gc
import os
import sys
import threading
from pathlib import Path
from changelog.connectors.java.program import find_java
from changelog.connectors.views.streams import java
before = len(gc.get_objects())
java.start(find_java(), Path(sys.argv[1]), heap_mib=64, has_rows=sys.argv[2] == "has rows")
print("left out:", gc.get_freeze_count() >= before)

import jpype
collectors = jpype.JClass("java.lang.management.ManagementFactory").getGarbageCollectorMXBeans()
of_all = [collector for collector in collectors if collector.getName() in ("MarkSweepCompact", "G1 Old Generation")]
before = [int(collector.getCollectionCount()) for collector in of_all]
jpype.java.lang.System.gc()
print("full collections:", [int(collector.getCollectionCount()) - before[0] for collector in of_all])
names = {str(collector.getName()) for collector in collectors} - {"G1 Concurrent GC"}  # only newer versions have it
print("collectors:", ", ".join(sorted(names)))

def niceness():
    return os.getpriority(os.PRIO_PROCESS, 0)  # on Linux, that of the calling thread

def start():
    thread = threading.Thread(target=lambda: print("niceness:", niceness() - own))
    thread.start()
    thread.join()

own = niceness()
java.start_yielding(start)
print("niceness afterwards:", niceness() - own)
print("lowest priority:", 19 - own)
"""


@pytest.mark.parametrize(
    ("rows", "collectors"),
    [("has none", "Copy, MarkSweepCompact"), ("has rows", "G1 Old Generation, G1 Young Generation")],
)
def test_requests_do_not_wait_for_collections_or_for_threads_that_apply_changes(
    tmp_path: Path, rows: str, collectors: str
) -> None:
    """Python's garbage collections skip all objects that existed before Java was started. After such a collection,
    JPype asks Java to collect its garbage, too, and Java ignores this.

    If rows are in Java's heap, Java uses the collector G1. According to its documentation, G1 stops all threads only
    for short times.

    On Linux, a thread with a lower priority starts Kafka Streams, and the threads of Kafka Streams inherit this
    priority. The thread that reads rows keeps its own priority.
    """
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), rows]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    lowest = int(lines.pop().removeprefix("lowest priority: "))
    assert lines == [
        "left out: True",
        "full collections: [0]",
        f"collectors: {collectors}",
        f"niceness: {min(java.NICENESS, lowest) if sys.platform == 'linux' else 0}",
        "niceness afterwards: 0",
    ]
