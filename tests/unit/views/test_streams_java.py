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
print(gc.get_freeze_count() >= before)
"""


def test_garbage_collections_skip_the_objects_from_before_the_start_of_java(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "True\n"
