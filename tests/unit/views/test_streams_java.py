"""Tests how Java is started. Each test starts a process, because a process can have only one Java virtual machine."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import gc
import sys
from pathlib import Path
from changelog.connectors.java.program import find_java
from changelog.connectors.views.streams import java
before = len(gc.get_objects())
java.start(find_java(), Path(sys.argv[1]), heap_mib=64)
print("left out:", gc.get_freeze_count() >= before)

import jpype
collectors = jpype.JClass("java.lang.management.ManagementFactory").getGarbageCollectorMXBeans()
collections = lambda: sum(int(collector.getCollectionCount()) for collector in collectors)
before = collections()
jpype.java.lang.System.gc()
print("more collections:", collections() - before)
"""


def test_collections_of_python_and_java_do_not_make_requests_wait(tmp_path: Path) -> None:
    """Python's do not go through the objects that exist before the start, and start none of Java's."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert lines == ["left out: True", "more collections: 0"]
